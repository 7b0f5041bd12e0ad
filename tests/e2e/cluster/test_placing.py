# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Who keeps which keys, while members come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster.nodes import Cluster, Node, cluster
from e2e.harness import eventually

from radixshmem_core.cli import main

_MANY = 40  # paths: some of them are kept by each member


@pytest.fixture
def made(region_name: str, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(region_name, tmp_path) as empty:
        yield empty


def _read_members(node: Node) -> int:
    return int(node.server.status()["cluster"]["directory"]["read_members"])


def _drain(node: Node) -> None:
    assert main(["drain", node.server.name]) == 0


def _all_found(writer: Node, reader: Node, seed: int) -> None:
    paths = [writer.put(2, seed=seed + number) for number in range(_MANY)]
    assert writer.client.flush(5)
    assert [reader.client.query(path).common_hit for path in paths] == [2] * _MANY


@pytest.mark.parametrize("change", ["joins", "drains"])
def test_a_peer_that_hears_of_a_change_late_finds_what_is_flushed(
    made: Cluster, change: str
) -> None:
    """It reads by the former map for as long as it waits for membership to be quiet."""
    more = {"data_bytes": "4M", "query_timeout_us": 2_000_000}
    writer = made.start(0, **more)
    late = made.start(1, settle_ms=1000, **more)
    third = made.start(2, **more) if change == "drains" else None
    members = 2 if third is None else 3
    made.settle()
    for node in (writer, late):
        eventually(lambda n=node: _read_members(n) == members, "all keep shards")
    if third is None:
        third = made.start(2, **more)
        members = 3
        made.settle_reads(writer, late, third)
    else:
        _drain(third)
        members = 2
    eventually(lambda: _read_members(writer) == members, "the writer has heard of it")
    assert _read_members(late) != members
    _all_found(writer, late, seed=1000)
    eventually(lambda: _read_members(late) == members, "the other one too")
    _all_found(writer, late, seed=2000)


def test_a_drained_node_stays_drained_when_the_cluster_is_reset(made: Cluster) -> None:
    a, b = made.start(0), made.start(1)
    made.settle()
    _drain(b)
    a.client.reset(cluster=True)
    eventually(lambda: _read_members(a) == 1, "only the other one keeps shards")
    path = b.put(3, seed=1)
    assert b.client.flush(5)
    assert a.client.query(path).common_hit == 0
