# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A client process that stops or dies while it holds the writer lock.

What dies at random moments, by the hundred, is in test_kills.py; what dies at every step of the
protocol is in csrc/tests/crash.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest
from e2e.harness import GEOMETRY, Process, eventually, path_hashes
from e2e.lock_holder import LOCK_HOLDER, stop_inside_lock

from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer
from radixshmem_core.values import InsertError


@pytest.fixture
def client(region_name: str) -> Iterator[RadixClient]:
    """A client beside a server whose callers get BUSY soon, and whose index holds 100 blocks."""
    config = ServerConfig(region_name, data_bytes="1M", lock_timeout_s=0.2, quarantine_s=0.2)
    with RadixServer(config), RadixClient(region_name, GEOMETRY) as attached:
        attached.insert(path_hashes(100), attached.allocate_slots(100))
        yield attached


def test_stopped_lock_holder_makes_writers_busy_and_nobody_else(
    client: RadixClient, start_client: Callable[[str], Process]
) -> None:
    holder = start_client(LOCK_HOLDER)
    holder.line()
    slots = client.allocate_slots(3)
    with stop_inside_lock(holder.pid, client):
        assert client.allocate_slots(5).size == 0
        refused = client.insert(path_hashes(3, seed=1), slots)
        assert refused.error == InsertError.BUSY
        with pytest.raises(TimeoutError, match="lock"):
            client.reset()
        pinned = client.query(path_hashes(100), lock=True)  # readers take no lock
        assert pinned.common_hit == 100
        pinned.finalize()
    eventually(
        lambda: client.insert(path_hashes(3, seed=1), slots).error == InsertError.OK,
        "the holder runs again, the slots are still ours",
    )
    assert client._index.check() == []


def test_recycling_while_the_lock_is_held_happens_later(
    client: RadixClient, start_client: Callable[[str], Process]
) -> None:
    holder = start_client(LOCK_HOLDER)
    holder.line()
    slots = client.allocate_slots(7)
    with stop_inside_lock(holder.pid, client):
        client.recycle_slots(slots)
        assert client.mempool_used() == 107
    holder.kill()

    def all_back() -> bool:
        client.allocate_slots(0)
        client.recycle_slots(client.allocate_slots(1))  # any call that takes the lock
        return client.mempool_used() == 100

    eventually(all_back, "the recycled slots are free")
    assert client._index.check() == []


def test_killed_lock_holder_is_replaced_at_once(
    client: RadixClient, start_client: Callable[[str], Process]
) -> None:
    for seed in range(5):
        holder = start_client(LOCK_HOLDER)
        holder.line()
        slots = client.allocate_slots(4)
        with stop_inside_lock(holder.pid, client):
            holder.signal(signal.SIGKILL)
            path = path_hashes(4, seed=seed + 10)
            end = time.monotonic() + 10
            while client.insert(path, slots).error != InsertError.OK:
                assert time.monotonic() < end, "the lock of the dead is not taken over"
        holder.kill()
        assert client._index.check() == []
    assert client.query(path_hashes(100)).common_hit == 100
