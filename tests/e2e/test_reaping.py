# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What dead clients held comes back, and not too early."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.harness import CLIENT_PRELUDE, GEOMETRY, Process, ServerProcess, eventually, path_hashes
from e2e.lock_holder import LOCK_HOLDER, stop_inside_lock

from radixshmem_core.client import RadixClient
from radixshmem_core.server import RadixServer

HOLDER = """
client = RadixClient(name, geometry, group={group!r})
client.insert(hashes(5), client.allocate_slots(5))
held = client.allocate_slots(7)
pin = client.query(hashes(5), lock=True)
say(os.getpid(), *held)
hear()
"""


@pytest.fixture
def client(server: RadixServer) -> Iterator[RadixClient]:
    with RadixClient(server.name, GEOMETRY) as attached:
        yield attached


def state(client: RadixClient) -> tuple[int, int]:
    """(slots in use, pins of all clients)."""
    return client.mempool_used(), len(client._index.pins())


def test_killed_client_gives_slots_and_pins_back(
    client: RadixClient, start_client: Callable[[str], Process]
) -> None:
    process = start_client(HOLDER.format(group=""))
    process.line()
    assert state(client) == (12, 1)
    process.kill()
    eventually(lambda: state(client) == (5, 0), "slots and pins of the dead are back")
    assert client.query(path_hashes(5)).common_hit == 5  # what it published stays
    assert [entry["client"] for entry in client._index.clients()] == [0, client._index.client_id]


def test_client_that_exits_without_close_gives_back_too(
    client: RadixClient, start_client: Callable[[str], Process]
) -> None:
    process = start_client(HOLDER.format(group="") + "os._exit(0)\n")
    process.line()
    process.tell("go")
    process.wait()
    eventually(lambda: state(client) == (5, 0), "slots and pins are back")


def test_stopped_client_keeps_everything(
    client: RadixClient, server: RadixServer, start_client: Callable[[str], Process]
) -> None:
    process = start_client(HOLDER.format(group=""))
    process.line()
    process.signal(signal.SIGSTOP)
    server._call(server._running_work()._reaper.sweep())  # type: ignore[union-attr]
    assert state(client) == (12, 1)
    process.signal(signal.SIGCONT)
    process.tell("go")
    assert process.wait() == 0


def test_client_that_closes_while_the_lock_is_busy_leaves_nothing_behind(
    client: RadixClient, start_client: Callable[[str], Process]
) -> None:
    holder = int(start_client(LOCK_HOLDER).line())
    closing = RadixClient(client.name, GEOMETRY)
    closing.insert(path_hashes(5), closing.allocate_slots(5))
    closing.allocate_slots(7)
    pinned = closing.query(path_hashes(5), lock=True)
    assert state(client) == (12, 1)
    with stop_inside_lock(holder, client):
        closing.close()
        assert state(client) == (12, 0)
    # This process lives on, but not that client of it.
    eventually(lambda: state(client) == (5, 0), "its slots are back")
    eventually(lambda: len(client._index.clients()) == 3, "its entry is free")
    pinned.finalize()


def test_slots_of_a_group_come_back_with_its_last_process(
    client: RadixClient, start_client: Callable[[str], Process]
) -> None:
    first = start_client(HOLDER.format(group="engine"))
    held = first.line().split()[1:]
    second = start_client(
        """
client = RadixClient(name, geometry, group="engine")
say("in")
hear()
client.recycle_slots([int(slot) for slot in hear().split()])
say("recycled")
hear()
"""
    )
    second.line()
    first.kill()
    eventually(lambda: state(client)[1] == 0, "pins of the dead are cleared")
    assert state(client) == (12, 0)  # a worker of the engine may still write the slots
    second.tell("go")
    second.tell(" ".join(held[:2]))
    assert second.line() == "recycled"
    assert state(client) == (10, 0)
    second.kill()
    eventually(lambda: state(client) == (5, 0), "slots of the group are back")


def test_forked_child_that_holds_the_connection_does_not_hide_a_death(
    client: RadixClient, start_client: Callable[[str], Process]
) -> None:
    process = start_client(
        HOLDER.format(group="").replace(
            "say(os", "child = os.fork()\nif child == 0: signal.pause()\nsay(child, os"
        )
    )
    child = int(process.line().split()[0])
    try:
        os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: state(client) == (5, 0), "slots and pins are back")
    finally:
        os.kill(child, signal.SIGKILL)


def test_client_that_died_without_a_server_goes_through_quarantine(
    region_name: str,
    start_server: Callable[..., ServerProcess],
    start_client: Callable[[str], Process],
) -> None:
    server = start_server("--quarantine-s", "0.3")
    server.event("waiting")
    with RadixClient(region_name, GEOMETRY) as client:
        process = start_client(HOLDER.format(group=""))
        process.line()
        server.kill()
        process.kill()
        assert state(client) == (12, 1)
        second = start_server("--quarantine-s", "0.3")
        second.event("adopted")
        eventually(lambda: state(client) == (5, 0), "the quarantine ends")
        assert second.stop() == 0
        assert "7 slots put into quarantine" in second.errors


def test_client_of_an_adopted_index_is_watched_again(
    region_name: str,
    start_server: Callable[..., ServerProcess],
    start_client: Callable[[str], Process],
) -> None:
    server = start_server()
    server.event("waiting")
    with RadixClient(region_name, GEOMETRY) as client:
        process = start_client(HOLDER.format(group=""))
        process.line()
        server.kill()
        second = start_server("--quarantine-s", "3600", "--verbose")
        second.event("adopted")
        # Its slots would wait an hour, were its process not known to the new server.
        eventually(lambda: second.errors.count("is watched") >= 2, "both clients reconnect")
        process.kill()
        eventually(lambda: state(client) == (5, 0), "slots and pins are back")
        assert second.stop() == 0


def test_clients_of_two_pid_namespaces_are_told_apart(
    client: RadixClient, start_client: Callable[[str], Process]
) -> None:
    program = """
flags = ["--pid", "--fork", "--kill-child"]
if os.geteuid() != 0:
    flags += ["--user", "--map-root-user"]
os.execvp("unshare", ["unshare", *flags, sys.executable, "-c", INNER, name])
"""
    inner = "INNER = " + repr(CLIENT_PRELUDE + HOLDER.format(group=""))
    first, second = (start_client(inner + program) for _ in range(2))
    pids = {first.line().split()[0], second.line().split()[0]}
    assert pids == {"1"}  # each is the first process of its namespace
    assert state(client) == (19, 2)
    first.kill()
    eventually(lambda: state(client) == (12, 1), "only what the dead one held is back")
    second.tell("close")
    assert second.wait() == 0
    eventually(lambda: state(client) == (5, 0), "the other one has left")


def test_status_counts_reaped_clients(
    server: RadixServer, client: RadixClient, start_client: Callable[[str], Process]
) -> None:
    process = start_client(HOLDER.format(group=""))
    process.line()
    process.kill()
    eventually(lambda: reaped(server.status()) == 1, "the reaped client is counted")


def reaped(report: dict[str, Any]) -> int:
    return int(report["counters"]["reaped_clients"])
