# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Blocks of one node are found and pulled by another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster.nodes import Cluster, cluster
from e2e.harness import eventually


@pytest.fixture(params=["shm", "tcp"])
def pair(request: pytest.FixtureRequest, region_name: str, tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes whose indexes and slots are read over one transport."""
    with cluster(region_name, tmp_path) as made:
        for number in range(2):
            protocol = {"tcp": "tcp"}.get(request.param, "")
            made.start(number, index_transport=request.param, transfer_protocol=protocol)
        made.settle()
        yield made


def test_a_path_of_one_node_is_found_and_pulled_by_the_other(pair: Cluster) -> None:
    a, b = pair.nodes
    path = a.put(100)
    a.flush()
    found = b.client.query(path)
    assert found.common_hit == 100
    assert [(rank, offset, len(s)) for rank, offset, s in found.full_fragments] == [
        (a.rank, 0, 100)
    ]
    assert b.client.query(path, local_only=True).common_hit == 0
    assert (a.client.rank(), b.client.rank()) == (a.rank, b.rank) == (0, 1)
    job = b.client.pull_async(path)
    assert (job.local_hit, job.planned_hit > 0) == (0, True)
    result = job.wait(10)
    assert (result.common_hit, result.remote_blocks, result.source_rank) == (100, 100, a.rank)
    assert b.wrong(path, result.full_slots) == 0
    result.finalize()
    transports = {row["rank"]: row["transport"] for row in b.client.peer_connections()}
    [slots] = b.server.status()["cluster"]["slots_of_peers"]
    assert transports == {b.rank: "shm", a.rank: slots["readers"].popitem()[0]}
    assert slots["why"] == ""
    fragments = b.client.query(path, local_only=True).full_fragments
    assert [(rank, len(slots)) for rank, _, slots in fragments] == [(b.rank, 100)]
    assert b.client.pull_async(path, lock=False).wait(10).source_rank == b.rank


def test_a_lookup_waits_longer_while_a_peer_is_read_over_a_stream(pair: Cluster) -> None:
    a, b = pair.nodes
    [transport] = {row["transport"] for row in b.client.peer_connections() if row["rank"] == a.rank}
    waits = {"shm": 2_000, "tcp": 20_000}[transport]
    assert b.client.lookup_figures()["timeout_us"] == waits
    pair.stop(a)
    eventually(lambda: len(b.client.peer_connections()) == 1, "the peer is gone")
    eventually(lambda: b.client.lookup_figures()["timeout_us"] == 2_000, "as before")


@pytest.mark.parametrize("timeout_ms", [3_000_000_000, 10**18])
def test_a_pull_may_have_any_time(pair: Cluster, timeout_ms: int) -> None:
    a, b = pair.nodes
    path = a.put(10)
    assert a.client.flush(math.inf)
    job = b.client.pull_async(path, timeout_ms=timeout_ms)
    result = job.wait(10)
    assert (result.common_hit, result.remote_blocks) == (10, 10)
    result.finalize()


def test_only_the_tail_behind_a_local_head_is_fetched(pair: Cluster) -> None:
    a, b = pair.nodes
    path = a.put(90)
    a.flush()
    b.insert(path[:37])
    found = b.client.query(path)
    assert [(rank, offset, len(s)) for rank, offset, s in found.full_fragments] == [
        (b.rank, 0, 37),
        (a.rank, 37, 53),
    ]
    result = b.client.pull_async(path).wait(10)
    assert (result.common_hit, result.remote_blocks) == (90, 53)
    assert b.wrong(path, result.full_slots) == 0
    result.finalize()
