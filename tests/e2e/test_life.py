# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Servers and clients that come, go, die and come again."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.harness import GEOMETRY, Process, ServerProcess, eventually, path_hashes

from radixshmem_core import client as client_module
from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import GeometryMismatch, RadixError, ServerNotReady
from radixshmem_core.server import RadixServer
from radixshmem_core.values import Geometry, InsertError

SHM = Path("/dev/shm")
StartServer = Callable[..., ServerProcess]
StartClient = Callable[[str], Process]


def files_of(name: str) -> set[str]:
    return {path.name[len(name) - 1 :] for path in SHM.glob(f"{name[1:]}*")}


def test_client_before_server_is_told_at_once(region_name: str) -> None:
    with pytest.raises(ServerNotReady, match="no radix-server answers at"):
        RadixClient(region_name, GEOMETRY)


def test_server_waits_for_a_geometry_and_answers_meanwhile(server: RadixServer) -> None:
    assert server.geometry is None
    with RadixClient(server.name) as client:
        info = client.status()
        assert (info.mode, info.geometry, info.last_error) == ("waiting", None, "")
        assert (info.index_name, info.rank, info.world_size) == (server.name, 0, 1)
        assert client.geometry is None
        with pytest.raises(ServerNotReady, match="no geometry yet"):
            client.query(path_hashes(3))
        with pytest.raises(ServerNotReady, match="no geometry yet"):
            client.block_size()
        with pytest.raises(
            TimeoutError, match=r"not ready after 0.05 s: the server is 'waiting' for some client"
        ):
            client.wait_ready(0.05)


def test_a_geometry_for_a_server_that_was_stopped_is_not_waited_for(
    region_name: str, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_ASK_TIMEOUT_S", 1.0)
    server = start_server()
    server.event("waiting")
    with RadixClient(region_name) as client:
        server.signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError, match=r"did not answer within 1 s: is it stopped"):
            client.configure(GEOMETRY)
        server.signal(signal.SIGCONT)
        assert client.configure(GEOMETRY).mode == "ready"
    assert server.stop() == 0


def test_first_geometry_wins_and_equal_ones_are_accepted(server: RadixServer) -> None:
    with RadixClient(server.name) as early, RadixClient(server.name, GEOMETRY) as first:
        assert first.info.mode == "ready"
        assert first.info.geometry == server.geometry
        assert first.geometry is not None
        assert first.geometry["pools"]["full"] == {"slot_bytes": 4000, "num_slots": 256}
        first.configure(GEOMETRY)
        first.configure(Geometry(16, 4000, slot_align=4096, register_chunk_tokens=4096))
        with RadixClient(server.name, GEOMETRY):
            pass
        assert early.wait_ready(10).mode == "ready"
        assert early.block_size() == 16


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (Geometry(32, 4000, slot_align=4096), "block_size: server 16, client 32"),
        (Geometry(16, 4001, slot_align=4096), "full_slot_bytes: server 4000, client 4001"),
        (Geometry(16, 4000, slot_align=1), "slot_align: server 4096, client 1"),
        (Geometry(16, 4000, fingerprint="m@2"), "fingerprint: server '', client 'm@2'"),
    ],
)
def test_another_geometry_is_refused_with_both_sides(
    server: RadixServer, other: Geometry, difference: str
) -> None:
    with RadixClient(server.name, GEOMETRY) as client:
        with pytest.raises(GeometryMismatch, match=difference):
            RadixClient(server.name, other)
        with pytest.raises(RuntimeError, match=difference):
            client.configure(other)
        assert client.query(path_hashes(2)).common_hit == 0  # the client works on


def test_concurrent_first_clients_agree_on_one_geometry(server: RadixServer) -> None:
    geometries = [GEOMETRY, Geometry(16, 5000)] * 4
    outcomes: list[object] = [None] * len(geometries)
    barrier = threading.Barrier(len(geometries))

    def connect(number: int) -> None:
        barrier.wait(30)
        try:
            with RadixClient(server.name, geometries[number]) as client:
                outcomes[number] = client.geometry
        except GeometryMismatch as error:
            outcomes[number] = error

    threads = [threading.Thread(target=connect, args=(n,)) for n in range(len(geometries))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    winners = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    assert winners == [server.geometry] * 4
    assert sum(isinstance(outcome, GeometryMismatch) for outcome in outcomes) == 4


def test_budget_that_cannot_hold_the_geometry_is_a_value_error(server: RadixServer) -> None:
    with pytest.raises(ValueError, match=r"2097152 bytes.*1048576"):
        RadixClient(server.name, Geometry(16, 2 << 20))
    info = server.info()
    assert (info.mode, "no FULL slot" in info.last_error) == ("waiting", True)
    with RadixClient(server.name, GEOMETRY) as client:  # a better geometry is still welcome
        assert client.info.last_error == ""


def test_second_server_of_a_name_is_refused(server: RadixServer) -> None:
    second = RadixServer(server.config)
    with pytest.raises(RadixError, match=server.name):
        second.start()
    with RadixClient(server.name, GEOMETRY) as client:  # the first one is unharmed
        assert client.status().mode == "ready"


def test_second_server_process_of_a_name_exits_with_an_error(
    region_name: str, start_server: StartServer
) -> None:
    first = start_server()
    first.event("waiting")
    second = start_server()
    assert second.wait() == 2
    assert region_name in second.errors
    assert "Traceback" not in second.errors
    assert first.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stop_signals_remove_everything(
    region_name: str, start_server: StartServer, number: int
) -> None:
    inherited = signal.signal(number, signal.default_int_handler)  # ignored under nohup
    try:
        server = start_server()
    finally:
        signal.signal(number, inherited)
    server.event("waiting")
    with RadixClient(region_name, GEOMETRY) as client:
        server.event("ready")
        assert files_of(region_name) == {"", "_data", ".sock", ".live"}
        assert server.stop(number) == 0
        assert files_of(region_name) <= {".live"}  # the living client's byte is in it
        with pytest.raises(ServerNotReady):
            client.query(path_hashes(1))
    assert files_of(region_name) == set()


def test_region_files_are_private(server: RadixServer) -> None:
    with RadixClient(server.name, GEOMETRY):
        for suffix in ("", "_data", ".sock", ".live"):
            mode = os.stat(SHM / f"{server.name[1:]}{suffix}").st_mode
            assert stat.S_IMODE(mode) == 0o600, suffix


def test_server_and_several_clients_in_one_process(server: RadixServer) -> None:
    with RadixClient(server.name, GEOMETRY) as one, RadixClient(server.name) as two:
        hashes = path_hashes(10)
        assert one.insert(hashes, one.allocate_slots(10)).error == 0
        assert two.query(hashes).common_hit == 10
        assert server.status()["counters"]["blocks"] == 10


def test_closed_server_refuses_clients_and_a_new_one_takes_them_back(region_name: str) -> None:
    config = ServerConfig(region_name, data_bytes="1M")
    with RadixServer(config) as first:
        client = RadixClient(region_name, GEOMETRY)
        hashes = path_hashes(4)
        client.insert(hashes, client.allocate_slots(4))
        first.close()
        with pytest.raises(ServerNotReady):
            client.query(hashes)
    with client, RadixServer(config) as second:
        eventually(lambda: second.info().mode == "ready", "the client configures the new server")
        eventually(lambda: _hit(client, hashes) == 0, "the client uses the new, empty index")
        assert client.insert(hashes, client.allocate_slots(4)).error == 0
        eventually(lambda: _attached_alive(second) == 1, "the client is attached again")


def test_cursor_of_an_earlier_server_is_stale(region_name: str) -> None:
    config = ServerConfig(region_name, data_bytes="1M")
    old, new = path_hashes(8, seed=1), path_hashes(8, seed=2)
    with RadixServer(config) as first:
        client = RadixClient(region_name, GEOMETRY)
        client.insert(old, client.allocate_slots(8))
        cursor = client.query(old[:4]).cursor
        assert cursor is not None
        first.close()
    with client, RadixServer(config):
        eventually(lambda: _hit(client, old) == 0, "the client uses the new, empty index")
        client.insert(new, client.allocate_slots(8))  # the same places as before
        stale = client.extend(cursor, new[4:])
        assert (stale.status, stale.common_hit) == (InsertError.CURSOR_STALE, 0)


def test_each_thread_is_told_before_its_slots_could_mean_those_of_a_new_server(
    region_name: str,
) -> None:
    config = ServerConfig(region_name, data_bytes="1M")
    hashes = path_hashes(4)
    with ThreadPoolExecutor(1) as other, RadixServer(config) as first:
        client = RadixClient(region_name, GEOMETRY)
        slots = client.allocate_slots(4)
        others = other.submit(client.allocate_slots, 4).result()
        first.close()
        with client, RadixServer(config) as second:
            eventually(
                lambda: _attached_alive(second) == 1, "the client attached in the background"
            )
            old_store = client.store
            assert old_store is not None
            with pytest.raises(ServerNotReady, match="void"):
                client.insert(hashes, slots)
            assert client.store is not old_store
            with pytest.raises(RadixError):
                old_store.read_slot(int(slots[0]))
            mine = client.allocate_slots(8)  # the same ids again
            assert set(slots) | set(others) <= set(mine)
            with pytest.raises(ServerNotReady, match="void"):
                other.submit(client.recycle_slots, others).result()
            assert client.mempool_used() == 8
            assert other.submit(client.mempool_used).result() == 8
            assert client.insert(hashes, mine[:4]).error == 0


def _hit(client: RadixClient, hashes: Any) -> int | None:
    try:
        return client.query(hashes).common_hit
    except ServerNotReady:
        return None


def _attached_alive(server: RadixServer) -> int:
    clients = server.status()["clients"]
    return sum(1 for entry in clients if entry["client"] and entry["alive"])


def test_another_geometry_after_a_restart_is_told_to_old_clients(region_name: str) -> None:
    config = ServerConfig(region_name, data_bytes="1M")
    with RadixServer(config) as first:
        client = RadixClient(region_name, GEOMETRY)
        client._wanted = None  # so that it does not configure the next server itself
        first.close()
    other = Geometry(16, 8000)
    message = "full_slot_bytes: client 4000, server 8000"
    with client, RadixServer(config), RadixClient(region_name, other):  # noqa: SIM117
        with pytest.raises(GeometryMismatch, match=message):
            client.query(path_hashes(1))


@pytest.mark.parametrize(
    "leave",
    [
        "pass",
        "client.close()",
        "sys.exit(3)",
        "os._exit(4)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "raise RuntimeError",
        "import multiprocessing.resource_tracker as t; t.ensure_running(); os._exit(0)",
    ],
)
def test_exit_of_a_client_never_removes_the_regions(
    server: RadixServer, start_client: StartClient, leave: str
) -> None:
    hashes = path_hashes(5)
    process = start_client(
        f"""
client = RadixClient(name, geometry)
client.insert(hashes(5), client.allocate_slots(5))
view = client.slot_view(0)
say("in")
hear()
{leave}
"""
    )
    assert process.line() == "in"
    process.tell("go")
    process.wait()
    with RadixClient(server.name, GEOMETRY) as client:
        assert client.query(hashes).common_hit == 5
        assert client.store is not None
        assert np.frombuffer(client.store.data_view(), np.uint8).sum() == 0
