# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Pulls on one node, and KV events."""

from __future__ import annotations

import pytest
from e2e.harness import GEOMETRY, path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import RadixError
from radixshmem_core.server import RadixServer
from radixshmem_core.values import (
    COMPONENT_MASK_FULL,
)


@pytest.fixture
def client(server: RadixServer) -> RadixClient:
    with RadixClient(server.name, GEOMETRY) as attached:
        yield attached


def test_pull_on_one_node_is_the_local_hit(client: RadixClient) -> None:
    hashes = path_hashes(8)
    slots = client.allocate_slots(5)
    client.insert(hashes[:5], slots)
    job = client.pull_async(hashes)
    assert job.done()
    assert (job.local_hit, job.planned_hit) == (5, 5)
    result = job.wait(timeout_s=1)
    assert (result.common_hit, result.full_slots.tolist()) == (5, slots.tolist())
    assert (result.remote_blocks, result.remote_bytes, result.source_rank) == (0, 0, 0)
    assert len(client._index.pins()) == 1
    result.finalize()
    result.finalize()
    assert client._index.pins() == []
    unlocked = client.pull_async(hashes, COMPONENT_MASK_FULL, lock=False, timeout_ms=10).wait()
    assert (unlocked.common_hit, client._index.pins()) == (5, [])


def test_cancelled_pull_pins_nothing(client: RadixClient) -> None:
    hashes = path_hashes(5)
    client.insert(hashes, client.allocate_slots(5))
    job = client.pull_async(hashes)
    job.cancel()
    assert client._index.pins() == []
    with pytest.raises(RuntimeError, match="cancelled"):
        job.wait()


def test_saturated_client_is_counted_and_still_served(server: RadixServer) -> None:
    with RadixClient(server.name, GEOMETRY, max_outstanding=2) as client:
        jobs = [client.pull_async(path_hashes(1), block=False) for _ in range(3)]
        assert [job.done() for job in jobs] == [True] * 3
        assert client.saturated == 1
        for job in jobs:
            job.wait()
        client.pull_async(path_hashes(1), block=False).wait()
        assert client.saturated == 1


def test_events_tell_what_was_evicted(region_name: str) -> None:
    config = ServerConfig(region_name, data_bytes="1M", kvevent_ring_capacity=4096)
    with (
        RadixServer(config),
        RadixClient(region_name, GEOMETRY) as writer,
        RadixClient(region_name, GEOMETRY) as watcher,
    ):
        assert watcher.kvevent_enabled
        watcher.kvevent_seek_to_head()
        hashes = path_hashes(256)
        writer.insert(hashes, writer.allocate_slots(256))
        writer.recycle_slots(writer.allocate_slots(10))
        gone: list[int] = []
        while len(part := watcher.kvevent_drain(4)[0]):
            gone += part.tolist()
        assert set(hashes[-10:].tolist()) <= set(gone)
        writer.reset()
        _, overflow = watcher.kvevent_drain(4)
        assert overflow  # everything is gone: resync


def test_events_are_off_unless_asked_for(client: RadixClient) -> None:
    assert not client.kvevent_enabled
    with pytest.raises(RadixError, match="--kvevent-ring-capacity"):
        client.kvevent_drain(10)
