# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The server itself: what it does in the background, and what happens when it cannot."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from e2e.harness import GEOMETRY, Held, ServerProcess, eventually, path_hashes

from radixshmem_core import client as client_module
from radixshmem_core import node, regions
from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import RadixError, ServerNotReady
from radixshmem_core.evictor import Evictor
from radixshmem_core.server import RadixServer
from radixshmem_core.values import ComponentType, InsertError

SHM = Path("/dev/shm")


@pytest.fixture
def creation(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Of regions."""
    return Held(monkeypatch, node, "create_regions")


def test_evictor_works_only_on_demand(region_name: str) -> None:
    config = ServerConfig(region_name, data_bytes="1M", background_evict_ratio=0)
    with RadixServer(config), RadixClient(region_name, GEOMETRY) as client:

        async def run(*_: object) -> None:
            return None

        evictor = Evictor(client._index, run, 0.25)  # type: ignore[arg-type]
        client.insert(path_hashes(256), client.allocate_slots(256))
        assert evictor.look() == 0  # filled to the last slot, and nobody wanted more
        assert client.mempool_free() == 0
        client.recycle_slots(client.allocate_slots(1))
        assert evictor.look() >= 63
        assert client.mempool_free() >= 64
        assert evictor.look() == 0
        assert client._index.check() == []


def test_demand_on_one_pool_leaves_the_others_filled(region_name: str) -> None:
    config = ServerConfig(region_name, data_bytes="1M", background_evict_ratio=0, mamba_ratio=0.5)
    geometry = dataclasses.replace(GEOMETRY, mamba_slot_bytes=4000)
    with RadixServer(config), RadixClient(region_name, geometry) as client:

        async def run(*_: object) -> None:
            return None

        evictor = Evictor(client._index, run, 0.25)  # type: ignore[arg-type]
        hashes = path_hashes(128)
        client.insert(hashes, client.allocate_slots(128))
        for n in range(1, 129):
            slot = client.allocate_slots(1, ComponentType.MAMBA)
            client.insert(hashes[:n], slot, component=ComponentType.MAMBA)
        client.recycle_slots(client.allocate_slots(1, ComponentType.MAMBA), ComponentType.MAMBA)
        assert evictor.look() >= 31
        assert client._index.slots_free(ComponentType.MAMBA) >= 32
        assert client.mempool_free() == 0
        client.recycle_slots(client.allocate_slots(1))
        assert evictor.look() >= 31
        assert client.mempool_free() >= 32


def test_evictor_leaves_pinned_blocks_alone(region_name: str) -> None:
    config = ServerConfig(region_name, data_bytes="1M", background_evict_ratio=0.5)
    with RadixServer(config), RadixClient(region_name, GEOMETRY) as client:
        hashes = path_hashes(200)
        client.insert(hashes, client.allocate_slots(200))
        hit = client.query(hashes, lock=True)
        other = path_hashes(56, seed=1)
        client.insert(other, client.allocate_slots(56))
        client.recycle_slots(client.allocate_slots(1))  # demand
        eventually(lambda: client.query(other).common_hit == 0, "all that may go is evicted")
        assert client.query(hashes).common_hit == 200
        hit.finalize()


def test_prefault_touches_all_memory(region_name: str) -> None:
    seen: list[tuple[str, int]] = []

    def listen(what: str, figures: dict[str, int]) -> None:
        seen.append((what, figures.get("done_bytes", 0)))

    config = ServerConfig(region_name, data_bytes="8M")
    with RadixServer(config, on_event=listen) as server, RadixClient(region_name, GEOMETRY):
        eventually(lambda: ("prefault", 8 << 20) in seen, "every page was touched")
        assert server.status()["prefault"] == {"done_bytes": 8 << 20, "total_bytes": 8 << 20}
    assert [what for what, _ in seen[:3]] == ["waiting", "configuring", "ready"]


def test_close_and_status_inside_on_event_are_errors(region_name: str) -> None:
    refused: list[tuple[str, str]] = []

    def listen(what: str, _: object) -> None:
        for call in (server.close, server.status):
            try:
                call()
            except RadixError as error:
                refused.append((what, str(error)))

    server = RadixServer(ServerConfig(region_name, data_bytes="1M"), on_event=listen)
    with server, RadixClient(region_name, GEOMETRY) as client:
        eventually(lambda: refused and refused[-1][0] == "prefault", "all events were told")
        assert client.status().mode == server.status()["info"]["mode"] == "ready"
        kinds = dict.fromkeys(what for what, _ in refused)
        assert list(kinds) == ["waiting", "configuring", "ready", "prefault"]
        assert len(refused) == 2 * len(kinds)
        assert {message.split(" of ")[0] for _, message in refused} == {"close()", "status()"}
        assert all("from its on_event" in message for _, message in refused)


def test_server_without_prefault(region_name: str) -> None:
    config = ServerConfig(region_name, data_bytes="8M", prefault=False)
    with RadixServer(config) as server, RadixClient(region_name, GEOMETRY) as client:
        assert server.status()["prefault"] is None
        assert bytes(client.slot_view(5)) == bytes(4096)


def test_failed_creation_is_told_and_may_be_tried_again(
    region_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RadixError("no memory today")

    with RadixServer(ServerConfig(region_name, data_bytes="1M")) as server:
        early = RadixClient(region_name)
        monkeypatch.setattr(node, "create_regions", fails)
        with pytest.raises(RadixError, match="no memory today"):
            RadixClient(region_name, GEOMETRY)
        info = server.info()
        assert (info.mode, info.last_error) == ("failed", "no memory today")
        with pytest.raises(RadixError, match="failed: no memory today"):
            early.wait_ready(5)
        monkeypatch.undo()
        with RadixClient(region_name, GEOMETRY):
            assert early.wait_ready(5).mode == "ready"
        early.close()


def test_creation_that_fails_half_way_leaves_nothing(
    region_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (node, regions):
        monkeypatch.setattr(module, "check_memory", lambda *_: None)  # as if memory went later
    config = ServerConfig(region_name, data_bytes="1M", max_clients=65535, max_pins=2**20)
    with RadixServer(config) as server:
        with pytest.raises((RadixError, ValueError)):  # the pin tables alone need 512 GiB
            RadixClient(region_name, GEOMETRY)
        assert not (SHM / f"{region_name[1:]}_data").exists()
        assert server.info().last_error


def test_server_answers_while_it_configures(region_name: str, creation: Held) -> None:
    with RadixServer(ServerConfig(region_name, data_bytes="1M")), RadixClient(region_name) as early:
        clients: list[RadixClient] = []
        thread = threading.Thread(target=lambda: clients.append(RadixClient(region_name, GEOMETRY)))
        thread.start()
        assert creation.begun.wait(30)
        assert early.status().mode == "configuring"
        with pytest.raises(ServerNotReady):
            early.query(path_hashes(1))
        creation.go_on.set()
        assert early.wait_ready(30).mode == "ready"
        thread.join(30)
        clients[0].close()


def test_a_client_that_is_closed_waits_for_no_creation(
    region_name: str, creation: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_ASK_TIMEOUT_S", 0.5)
    with RadixServer(ServerConfig(region_name, data_bytes="1M")):
        client = RadixClient(region_name)
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(client.configure, GEOMETRY)
            assert creation.begun.wait(30)
            client.close()
            with pytest.raises(RadixError, match="was closed"):
                waiting.result(20)
        creation.go_on.set()


def test_close_waits_for_a_creation(
    region_name: str, creation: Held, caplog: pytest.LogCaptureFixture
) -> None:
    server = RadixServer(ServerConfig(region_name, data_bytes="256M")).start()
    errors: list[Exception] = []

    def connect() -> None:
        try:
            RadixClient(region_name, GEOMETRY).close()
        except RadixError as error:
            errors.append(error)

    client = threading.Thread(target=connect)
    client.start()
    assert creation.begun.wait(30)
    closing = threading.Thread(target=server.close)
    closing.start()
    creation.go_on.set()
    closing.join(30)
    client.join(30)
    assert not closing.is_alive()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert not list(SHM.glob(f"{region_name[1:]}*"))


def test_client_table_full_names_the_limit(region_name: str) -> None:
    with (
        RadixServer(ServerConfig(region_name, data_bytes="1M", max_clients=2)),
        RadixClient(region_name, GEOMETRY),
    ):
        clients = [RadixClient(region_name)]
        with pytest.raises(RadixError, match=r"all 2 client entries .* raise --max-clients"):
            RadixClient(region_name)
        clients.pop().close()
        with RadixClient(region_name) as late:  # there is room again
            assert late.query(path_hashes(1)).common_hit == 0


def test_pin_table_full_is_a_status(region_name: str) -> None:
    with (
        RadixServer(ServerConfig(region_name, data_bytes="1M", max_pins=16)),
        RadixClient(region_name, GEOMETRY) as client,
    ):
        hashes = path_hashes(3)
        client.insert(hashes, client.allocate_slots(3))
        hits = [client.query(hashes, lock=True) for _ in range(17)]
        assert [hit.status for hit in hits] == [0] * 16 + [InsertError.PINS_FULL]
        assert hits[16].common_hit == 0
        for hit in hits:
            hit.finalize()
        hit = client.query(hashes, lock=True)
        assert hit.common_hit == 3
        hit.finalize()


def test_lost_slot_region_makes_the_next_server_start_empty(
    region_name: str, start_server: Callable[..., ServerProcess]
) -> None:
    first = start_server()
    first.event("waiting")
    with RadixClient(region_name, GEOMETRY) as client:
        hashes = path_hashes(5)
        client.insert(hashes, client.allocate_slots(5))
        first.kill()
        (SHM / f"{region_name[1:]}_data").unlink()
        second = start_server()
        second.event("waiting")
        second.event("ready")  # the living client configures it

        def usable() -> bool:
            try:
                return client.query(hashes).common_hit == 0
            except ServerNotReady:
                return False

        eventually(usable, "the client uses the new, empty index")
        assert client.insert(hashes, client.allocate_slots(5)).error == InsertError.OK
        assert second.stop() == 0
    assert "cannot adopt, starting empty" in second.errors


def test_read_only_client_finds_the_next_server(region_name: str) -> None:
    config = ServerConfig(region_name, data_bytes="1M")
    first = RadixServer(config).start()
    with RadixClient(region_name, GEOMETRY), RadixClient(region_name, read_only=True) as reader:
        first.close()
        with pytest.raises(ServerNotReady):
            reader.query(path_hashes(1))
        with RadixServer(config):
            assert reader.wait_ready(30).mode == "ready"
            assert reader.query(path_hashes(1)).common_hit == 0


def test_forgotten_server_is_closed_at_exit(region_name: str) -> None:
    program = f"""
from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer
from radixshmem_core.values import Geometry
server = RadixServer(ServerConfig({region_name!r}, data_bytes="1M")).start()
client = RadixClient({region_name!r}, Geometry(16, 4000))
held = client.allocate_slots(3)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], timeout=60, check=True)
    assert not list(SHM.glob(f"{region_name[1:]}*"))


def test_events_go_to_the_log_when_nobody_listens(
    region_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="radixshmem.server")
    with RadixServer(ServerConfig(region_name, data_bytes="1M")):
        assert f"{region_name}: waiting" in caplog.text
    caplog.clear()
    with RadixServer(ServerConfig(region_name, data_bytes="1M"), on_event=lambda *_: None):
        assert f"{region_name}: waiting" not in caplog.text


@pytest.mark.parametrize("group", ["", "nogroup"])
def test_other_users_need_the_group(region_name: str, group: str) -> None:
    if os.geteuid() != 0:
        group = ""  # only root can become somebody else; then there is nobody to refuse
    with (
        RadixServer(ServerConfig(region_name, data_bytes="1M", group=group)),
        RadixClient(region_name, GEOMETRY) as client,
    ):
        child = os.fork()
        if child == 0:
            code = 9
            try:
                if os.geteuid() == 0:
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                with RadixClient(region_name) as other:
                    other.insert(path_hashes(2), other.allocate_slots(2))
                    code = 1
            except RadixError as error:
                code = 2 if "--group" in str(error) else 3
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        allowed = group != "" or os.geteuid() != 0
        assert code == (1 if allowed else 2)
        assert client.query(path_hashes(2)).common_hit == (2 if allowed else 0)
