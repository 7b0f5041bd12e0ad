# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Containers that share /dev/shm and nothing else: process ids mean nothing across them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import (
    CLIENT_PRELUDE,
    GEOMETRY,
    Process,
    eventually,
    path_hashes,
    why_not_unshare,
)
from e2e.lock_holder import LOCK_HOLDER, stop_inside_lock

from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer
from radixshmem_core.values import InsertError

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


REASON = why_not_unshare(UNSHARE)
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


class Container(Process):
    """A Python client as process 1 of a PID namespace of its own."""

    def __init__(self, program: str, name: str) -> None:
        command = [*UNSHARE, sys.executable, "-c", CLIENT_PRELUDE + program, name]
        super().__init__("-c", f"import os; os.execvp('unshare', {command!r})")

    def inner_pid(self) -> int:
        """The process id of the client as this namespace numbers it."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        assert len(children) == 1, children
        return int(children[0])


@pytest.fixture
def client(region_name: str) -> Iterator[RadixClient]:
    config = ServerConfig(region_name, data_bytes="1M", lock_timeout_s=0.2, quarantine_s=0.2)
    with RadixServer(config), RadixClient(region_name, GEOMETRY) as attached:
        attached.insert(path_hashes(100), attached.allocate_slots(100))
        yield attached


WAITER = """
client = RadixClient(name, geometry)
say(os.getpid())
hear()
say("waits")
while True:
    client.insert(hashes(1, seed=3), client.allocate_slots(1))
"""

KEEPER = """
client = RadixClient(name, geometry)
client.insert(hashes(5, seed=9), client.allocate_slots(5))
held = client.allocate_slots(7)
pin = client.query(hashes(5, seed=9), lock=True)
say(os.getpid())
hear()
"""


def test_death_of_a_waiter_never_frees_the_lock_of_a_namesake(
    client: RadixClient, region_name: str, processes: Callable[..., Any]
) -> None:
    owner = processes(Container, LOCK_HOLDER, region_name)
    waiter = processes(Container, WAITER, region_name)
    assert owner.line() == waiter.line() == "1"  # the same process id, each in its namespace
    holder = owner.inner_pid()
    with stop_inside_lock(holder, client):
        waiter.tell("go")
        assert waiter.line() == "waits"
        waits = waiter.inner_pid()
        eventually(lambda: sleeps_in_futex(waits), "the waiter sleeps at the lock")
        os.kill(waits, signal.SIGKILL)
        waiter.wait()
        for _ in range(3):
            refused = client.insert(path_hashes(1, seed=5), [], 0)
            assert refused.error == InsertError.BUSY, "the lock of a living owner was released"
    eventually(
        lambda: client.insert(path_hashes(1, seed=5), [], 0).error == InsertError.OK,
        "the owner runs again",
    )
    assert client._index.check() == []


def sleeps_in_futex(pid: int) -> bool:
    """Whether a thread of the process waits on a futex in shared memory with a timeout."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        words = (task / "syscall").read_text().split()
        if words and words[0] == "202":  # futex, on x86-64
            operation = int(words[2], 16)
            if operation & 0x7F == 0 and operation & 0x80 == 0:  # FUTEX_WAIT, not private
                return True
    return False


def test_owner_killed_in_its_namespace_is_replaced_by_a_namesake(
    client: RadixClient, region_name: str, processes: Callable[..., Any]
) -> None:
    owner = processes(Container, LOCK_HOLDER, region_name)
    assert owner.line() == "1"
    holder = owner.inner_pid()
    with stop_inside_lock(holder, client):
        successor = processes(Container, WAITER, region_name)
        os.kill(holder, signal.SIGKILL)
        assert successor.line() == "1"
        successor.tell("go")
        assert successor.line() == "waits"
        eventually(
            lambda: client.query(path_hashes(1, seed=3)).common_hit == 1, "the successor inserts"
        )
    assert client._index.check() == []


def test_dead_container_gives_slots_and_pins_back(
    client: RadixClient, region_name: str, processes: Callable[..., Any]
) -> None:
    keeper = processes(Container, KEEPER, region_name)
    assert keeper.line() == "1"
    assert (client.mempool_used(), len(client._index.pins())) == (112, 1)
    os.kill(keeper.inner_pid(), signal.SIGKILL)
    eventually(
        lambda: (client.mempool_used(), len(client._index.pins())) == (105, 0),
        "slots and pins of the dead are back",
    )
    assert client.query(path_hashes(5, seed=9)).common_hit == 5
