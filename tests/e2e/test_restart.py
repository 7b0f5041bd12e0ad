# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Servers that start on what a dead server, or somebody else, left."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import GEOMETRY, Process, ServerProcess, eventually, path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import GeometryMismatch, RadixError, ServerNotReady
from radixshmem_core.server import RadixServer
from radixshmem_core.values import Geometry

SHM = Path("/dev/shm")
StartServer = Callable[..., ServerProcess]
StartClient = Callable[[str], Process]


def files_of(name: str) -> set[str]:
    return {path.name[len(name) - 1 :] for path in SHM.glob(f"{name[1:]}*")}


def test_killed_server_is_adopted_when_clients_live(
    region_name: str, start_server: StartServer
) -> None:
    first = start_server()
    first.event("waiting")
    with RadixClient(region_name, GEOMETRY) as client:
        hashes = path_hashes(20)
        slots = client.allocate_slots(20)
        assert client.store is not None
        client.store.write_slot(int(slots[0]), b"kept bytes")
        client.insert(hashes, slots)
        mine = client.allocate_slots(3)
        first.kill()
        assert client.query(hashes).common_hit == 20  # shared memory works on
        with pytest.raises(ServerNotReady):
            client.status()

        second = start_server()
        event = second.event("adopted")
        assert event["geometry"]["pools"]["full"]["num_slots"] == 256
        assert client.wait_ready(30).mode == "ready"
        hit = client.query(hashes, lock=True)
        assert hit.common_hit == 20
        assert client.store.read_slot(int(hit.full_slots[0])).startswith(b"kept bytes")
        hit.finalize()
        client.recycle_slots(mine)  # still this client's
        with RadixClient(region_name, GEOMETRY) as late:
            assert late.query(hashes).common_hit == 20
        assert second.stop() == 0


def test_adopting_server_keeps_the_old_budget_and_says_so(
    region_name: str, start_server: StartServer
) -> None:
    first = start_server()
    first.event("waiting")
    with RadixClient(region_name, GEOMETRY):
        first.kill()
        second = start_server(data_bytes="2M")
        second.event("adopted")
        assert second.stop() == 0
        assert "data_bytes stays 1048576" in second.errors


def test_killed_server_is_reclaimed_when_no_client_lives(
    region_name: str, start_server: StartServer, orphan: RadixClient
) -> None:
    orphan.close()
    assert "" in files_of(region_name)
    second = start_server()
    second.event("waiting")
    assert files_of(region_name) == {".sock", ".live"}
    with RadixClient(region_name, Geometry(16, 8000)) as client:  # any geometry is welcome
        assert client.query(path_hashes(5)).common_hit == 0
    assert second.stop() == 0


def test_killed_server_without_a_geometry_leaves_nothing_in_the_way(
    region_name: str, start_server: StartServer
) -> None:
    first = start_server()
    first.event("waiting")
    first.kill()
    assert ".sock" in files_of(region_name)  # a stale socket
    second = start_server()
    second.event("waiting")
    assert second.stop() == 0


def test_garbage_under_the_index_name_is_replaced_by_a_server_and_refused_by_a_client(
    region_name: str, start_server: StartServer
) -> None:
    (SHM / region_name[1:]).write_bytes(os.urandom(1 << 16))
    (SHM / f"{region_name[1:]}_data").write_bytes(b"garbage")
    server = start_server()
    server.event("waiting")
    with RadixClient(region_name, GEOMETRY) as client:
        assert client.query(path_hashes(1)).common_hit == 0
    assert server.stop() == 0
    assert "removing" in server.errors


def test_other_layout_version_is_refused_by_a_client(server: RadixServer) -> None:
    with RadixClient(server.name, GEOMETRY):
        path = SHM / server.name[1:]
        with path.open("r+b") as region:
            region.seek(8)
            version = region.read(8)
            region.seek(8)
            region.write(bytes(byte ^ 0xFF for byte in version))
            region.flush()
            with pytest.raises(GeometryMismatch, match="layout"):
                RadixClient(server.name)
            region.seek(8)
            region.write(version)
        with RadixClient(server.name) as client:
            assert client.query(path_hashes(1)).common_hit == 0


def test_data_region_of_another_living_server_is_never_touched(
    region_name: str, server: RadixServer
) -> None:
    with RadixClient(server.name, GEOMETRY) as client:
        config = ServerConfig(f"{region_name}_x", data_bytes="1M", data_name=f"{region_name}_data")
        with pytest.raises(RadixError, match="belongs to another living radix-server"):
            RadixServer(config).start()
        config = ServerConfig(f"{region_name}_data", data_bytes="1M")
        with pytest.raises(RadixError, match="belongs to another living radix-server"):
            RadixServer(config).start()
        assert client.store is not None
        assert client.store.read_slot(0) == bytes(4096)


def test_unrelated_file_under_data_name_is_left_alone(region_name: str) -> None:
    precious = SHM / f"{region_name[1:]}_precious"
    precious.write_bytes(b"precious")
    config = ServerConfig(region_name, data_bytes="1M", data_name=f"{region_name}_precious")
    with pytest.raises(RadixError, match="no slot region and is left alone"):
        RadixServer(config).start()
    assert precious.read_bytes() == b"precious"
    precious.unlink()


def test_socket_of_another_process_is_not_taken(region_name: str, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    config = ServerConfig(region_name, data_bytes="1M", endpoint=f"unix://{path}")
    with pytest.raises(RadixError, match="another server already answers"):
        RadixServer(config).start()
    listener.close()
    with RadixServer(config), RadixClient(region_name, GEOMETRY, endpoint=f"unix://{path}"):
        assert not (SHM / f"{region_name[1:]}.sock").exists()


def test_a_new_server_that_does_not_answer_is_none_yet(
    region_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise TimeoutError("the radix-server did not answer")

    config = ServerConfig(region_name, data_bytes="1M")
    first = RadixServer(config).start()
    with RadixClient(region_name, GEOMETRY) as client, RadixClient(region_name) as other:
        monkeypatch.setattr(client, "_announce", silent)
        first.close()
        with RadixServer(config):
            other.configure(GEOMETRY)
            for _ in range(2):
                with pytest.raises(ServerNotReady):
                    client.query(path_hashes(2))
            monkeypatch.undo()
            with pytest.raises(ServerNotReady, match="was replaced"):
                client.query(path_hashes(2))
            assert client.query(path_hashes(2)).common_hit == 0


def test_a_new_server_that_is_too_small_is_told_once(
    region_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = RadixServer(ServerConfig(region_name, data_bytes="1M")).start()
    with RadixClient(region_name, Geometry(16, 8000)) as client:
        first.close()
        with RadixServer(ServerConfig(region_name, data_bytes="4K")):
            eventually(lambda: "cannot attach" in caplog.text, "the reason is told")
        with RadixServer(ServerConfig(region_name, data_bytes="1M")) as third:
            eventually(lambda: third.geometry is not None, "the client has told its geometry")
            with pytest.raises(ServerNotReady, match="was replaced"):
                client.query(path_hashes(2))
        (told,) = (r.getMessage() for r in caplog.records if "cannot attach" in r.getMessage())
        assert "4096" in told, "the bytes that do not suffice"


def test_lists_find_the_new_server_too(region_name: str, start_server: StartServer) -> None:
    """What the core refuses before it looks at the index must not hide that this one has ended."""
    first = start_server()
    first.event("waiting")
    with RadixClient(region_name, GEOMETRY) as client:
        assert client.query([1, 2, 3]).common_hit == 0
        assert first.stop() == 0
        second = start_server()
        second.event("ready")  # the client's own thread has told it the geometry

        def answers() -> bool:
            try:
                return client.query([1, 2, 3]).common_hit == 0
            except ServerNotReady:
                return False

        eventually(answers, "the client goes on to the new server")
        assert second.stop() == 0
