# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Starts that must not harm what others have: living servers, and caches that wait for one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import GEOMETRY, ServerProcess, path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import RadixError
from radixshmem_core.identity import Identity
from radixshmem_core.server import RadixServer

SHM = Path("/dev/shm")
StartServer = Callable[..., ServerProcess]


def test_index_of_a_living_server_is_no_leftover_slot_region(region_name: str) -> None:
    other = f"{region_name}_data"  # where a server of region_name has its slots
    config = ServerConfig(other, data_bytes="1M")
    with RadixServer(config), RadixClient(other, GEOMETRY) as client:
        client.insert(path_hashes(5), client.allocate_slots(5))
        with pytest.raises(RadixError, match="belongs to another living radix-server"):
            RadixServer(ServerConfig(region_name, data_bytes="1M")).start()
        with RadixClient(other, GEOMETRY) as late:
            assert late.query(path_hashes(5)).common_hit == 5


@pytest.mark.parametrize("suffix", [".live", ".sock"])
def test_names_of_other_files_are_refused(region_name: str, suffix: str) -> None:
    with pytest.raises(ValueError, match="those of other files of a server"):
        ServerConfig(region_name + suffix, data_bytes="1M")
    with pytest.raises(ValueError, match="those of other files of a server"):
        ServerConfig(region_name, data_bytes="1M", data_name=region_name + suffix)


def test_failed_start_leaves_a_cache_to_be_adopted(
    region_name: str, orphan: RadixClient, tmp_path: Path
) -> None:
    taken = tmp_path / "taken.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(taken))
        listener.listen()
        server = RadixServer(ServerConfig(region_name, data_bytes="1M", endpoint=f"unix://{taken}"))
        with pytest.raises(RadixError, match="another server already answers"):
            server.start()
    assert orphan.query(path_hashes(5)).common_hit == 5
    with RadixServer(ServerConfig(region_name, data_bytes="1M")) as second:
        assert second.info().mode == "ready"
        assert orphan.wait_ready(30).mode == "ready"
        assert orphan.query(path_hashes(5)).common_hit == 5


def test_start_that_cannot_adopt_in_time_leaves_all_of_it(
    region_name: str, orphan: RadixClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise TimeoutError("a stopped client holds the lock")

    with monkeypatch.context() as patch:
        patch.setattr(Identity, "decode", stopped)
        with pytest.raises(TimeoutError, match="a stopped client"):
            RadixServer(ServerConfig(region_name, data_bytes="1M")).start()
    assert orphan.query(path_hashes(5)).common_hit == 5
    with RadixServer(ServerConfig(region_name, data_bytes="1M")) as second:
        assert second.info().mode == "ready"


def test_slots_of_a_dead_server_go_wherever_they_lie(
    region_name: str, start_server: StartServer
) -> None:
    first = start_server("--data-name", f"{region_name}-elsewhere")
    first.event("waiting")
    RadixClient(region_name, GEOMETRY).close()
    first.kill()
    elsewhere = SHM / f"{region_name[1:]}-elsewhere"
    assert elsewhere.exists()
    with RadixServer(ServerConfig(region_name, data_bytes="1M")):
        assert not elsewhere.exists()


def test_server_goes_on_when_nobody_reads_its_events(region_name: str) -> None:
    def listen(what: str, _: object) -> None:
        raise BrokenPipeError(what)

    with (
        RadixServer(ServerConfig(region_name, data_bytes="1M"), on_event=listen) as server,
        RadixClient(region_name, GEOMETRY) as client,
    ):
        assert server.info().mode == client.info.mode == "ready"


def test_files_of_a_dead_server_get_the_new_mode(
    region_name: str, start_server: StartServer
) -> None:
    first = start_server()
    first.event("waiting")
    first.kill()
    live = SHM / f"{region_name[1:]}.live"
    assert live.stat().st_mode & 0o777 == 0o600
    with RadixServer(ServerConfig(region_name, data_bytes="1M", group="root")):
        assert live.stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize("suffix", ["", "_data"])
def test_fifo_under_a_name_of_the_server_stops_nothing(region_name: str, suffix: str) -> None:
    os.mkfifo(SHM / (region_name[1:] + suffix))
    with RadixServer(ServerConfig(region_name, data_bytes="1M")) as server:
        assert server.info().mode == "waiting"
        with RadixClient(region_name, GEOMETRY) as client:
            assert client.mempool_total() == 256
