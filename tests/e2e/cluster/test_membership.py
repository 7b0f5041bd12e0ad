# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Nodes join, leave, crash and come back, in any order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster.nodes import Cluster, Node, cluster
from e2e.harness import GEOMETRY, ServerProcess, eventually, path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.cluster.registry import NameTaken, open_registry

_FOUND_S = 5.0  # a prefix is found again so long after its node has come back


@pytest.fixture
def made(region_name: str, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(region_name, tmp_path) as empty:
        yield empty


def _finds(node: Node, hashes: Any) -> bool:
    return node.client.query(hashes).common_hit == len(hashes)


def _lose_registry(made: Cluster, aside: Path, *, rank_0_to: str) -> None:
    """Put another registry in its place, where only that name has a rank."""
    place = Path(made.registry.removeprefix("file://"))
    registry = open_registry(f"file://{aside}")
    assert registry.join(rank_0_to, 1, "127.0.0.1", 1).rank == 0
    registry.leave()
    registry.close()
    (place / "default").rename(place / "old")
    (aside / "default").rename(place / "default")


def _all_find(made: Cluster, paths: list[Any]) -> bool:
    return all(_finds(node, path) for node in made.nodes for path in paths)


def test_nodes_that_join_later_find_what_was_there_and_are_found(made: Cluster) -> None:
    paths = []
    for number in range(3):
        node = made.start(number)
        paths.append(node.put(30, seed=number))
        eventually(lambda: _all_find(made, paths), f"with {number + 1} nodes", _FOUND_S)


def test_a_node_that_leaves_takes_only_its_own_paths_along(made: Cluster) -> None:
    for number in range(3):
        made.start(number)
    made.settle()
    paths = [node.put(40, seed=number) for number, node in enumerate(made.nodes)]
    eventually(lambda: _all_find(made, paths), "all find all", _FOUND_S)
    assert [node.client.world_size() for node in made.nodes] == [3, 3, 3]
    made.stop(made.nodes[1])
    eventually(lambda: _all_find(made, [paths[0], paths[2]]), "the rest finds the rest", _FOUND_S)
    eventually(lambda: made.nodes[0].client.world_size() == 2, "a client sees it without asking")
    assert all(node.client.query(paths[1]).common_hit == 0 for node in made.nodes)
    eventually(lambda: made.nodes[0].client.status().world_size == 2, "two are left")


def test_a_node_that_crashed_and_returned_is_found_and_finds(
    made: Cluster, region_name: str, processes: Callable[..., Any]
) -> None:
    name = f"{region_name}_crash"
    flags = ("--data-bytes", "1M", "--node-name", "crash", "--transfer-backend", "builtin")
    start = (ServerProcess, name, "--registry", made.registry, "--settle-ms", "50", *flags)
    a, b = made.start(0), made.start(1)
    kept = [a.put(30, seed=1), b.put(30, seed=2)]
    server = processes(*start)
    server.event("waiting")
    with RadixClient(name, GEOMETRY) as client:
        ours = path_hashes(30, 3)
        assert client.insert(ours, client.allocate_slots(30)).error == 0
        eventually(lambda: _finds(a, ours) and _finds(b, ours), "it is found")
        server.signal(signal.SIGKILL)
        server.wait()
    eventually(lambda: _all_find(made, kept), "the others go on", _FOUND_S)
    server = processes(*start)
    server.event("waiting")
    with RadixClient(name, GEOMETRY) as client:
        eventually(
            lambda: all(client.query(path).common_hit == 30 for path in kept),
            "the others' prefixes are found again",
            _FOUND_S,
        )
        assert a.client.query(ours).common_hit == 0  # of a life that is over
        ours = path_hashes(30, 4)
        assert client.insert(ours, client.allocate_slots(30)).error == 0
        eventually(lambda: _finds(a, ours) and _finds(b, ours), "it is found again", _FOUND_S)
    assert server.stop() == 0


def test_a_node_that_returns_has_the_rank_it_had(made: Cluster) -> None:
    ranks = [made.start(number).rank for number in range(3)]
    assert sorted(ranks) == [0, 1, 2]
    made.stop(made.nodes[1])
    assert made.start(1).rank == ranks[1]


def test_a_node_whose_rank_was_given_away_goes_on_with_another(
    made: Cluster, tmp_path: Path
) -> None:
    a, b = made.start(0), made.start(1)
    path = a.put(30, seed=1)
    eventually(lambda: _finds(b, path), "it is found")
    _lose_registry(made, tmp_path / "lost", rank_0_to="n2")
    other = made.start(2)
    assert other.rank == 0
    eventually(lambda: a.rank not in (b.rank, other.rank), "a has a rank of its own")
    made.settle_reads(a, b, other)
    eventually(lambda: _all_find(made, [path]), "found under the new rank", _FOUND_S)
    fragments = b.client.query(path).full_fragments
    assert [rank for rank, _, _ in fragments] == [a.rank]


def test_the_second_of_two_nodes_with_one_name_does_not_start(made: Cluster) -> None:
    made.start(0)
    with pytest.raises(NameTaken, match="--node-name"):
        made.start(1, node_name="n0")


def test_readiness_waits_for_the_expected_nodes_and_says_for_what(made: Cluster) -> None:
    more = {"expected_min_nodes": 2, "bootstrap_timeout_s": 0.5}
    a = made.start(0, **more)
    eventually(lambda: a.client.status().last_error, "a reason")
    assert a.client.status().mode != "ready"
    assert "1 of 2 nodes" in a.client.status().last_error
    with pytest.raises(TimeoutError, match="1 of 2 nodes"):
        a.client.wait_ready(0.1)
    b = made.start(1, **more)
    for node in (a, b):
        info = node.client.wait_ready(10)
        assert (info.mode, info.last_error, info.world_size) == ("ready", "", 2)
    made.stop(b)
    eventually(lambda: a.client.status().world_size == 1, "one is left")
    assert a.client.status().mode == "ready"
