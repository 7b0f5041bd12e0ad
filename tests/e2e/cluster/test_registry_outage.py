# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Nodes whose registry is not there: at the start, for a while, or with its data lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from e2e.cluster.etcd import EtcdServer
from e2e.cluster.nodes import Cluster, Node
from e2e.harness import eventually

from radixshmem_core.errors import RadixError

_HEAL_S = 20.0


@pytest.fixture
def made(region_name: str, etcd: EtcdServer) -> Iterator[Cluster]:
    empty = Cluster(region_name, etcd.url)
    yield empty
    empty.close()


@contextmanager
def _no_miss(node: Node, *paths: Any) -> Iterator[None]:
    """The node finds these paths at all times."""
    stop = threading.Event()
    misses: list[tuple[str, int, int]] = []

    def look() -> None:
        while not stop.wait(0.002):
            for number, path in enumerate(paths):
                found = node.client.query(path).common_hit
                if found != len(path):
                    misses.append((node.server.name, number, found))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not misses


def _error(node: Node) -> str:
    return str(node.server.status()["cluster"]["registry_error"])


@pytest.mark.parametrize("bring_back", [EtcdServer.start, EtcdServer.wipe], ids=["same", "empty"])
def test_hits_go_on_without_etcd_and_the_cluster_heals(
    made: Cluster, etcd: EtcdServer, bring_back: Callable[[EtcdServer], None]
) -> None:
    more = {"query_timeout_us": 2_000_000}  # a busy machine is no miss
    a, b = made.start(0, **more), made.start(1, **more)
    made.settle()
    mine, theirs = a.put(30, seed=1), b.put(30, seed=2)
    a.flush()
    b.flush()
    with _no_miss(a, mine, theirs), _no_miss(b, mine, theirs):
        etcd.stop()
        eventually(lambda: _error(a) and _error(b), "both notice")
        new = a.put(30, seed=3)
        a.flush()
        assert b.client.query(new).common_hit == 30  # publication needs no registry
        bring_back(etcd)
        eventually(lambda: not _error(a) and not _error(b), "both are members again", _HEAL_S)
        c = made.start(2, **more)
        made.settle()
    assert len({node.rank for node in (a, b, c)}) == 3
    eventually(lambda: all(c.client.query(p).common_hit == 30 for p in (mine, theirs, new)), "c")


def test_nodes_that_start_without_etcd_serve_alone_and_meet_later(
    made: Cluster, etcd: EtcdServer
) -> None:
    etcd.stop()
    a, b = made.start(0), made.start(1)
    path = a.put(30, seed=1)
    assert a.client.wait_ready(10).world_size == 1
    assert a.client.query(path).common_hit == 30
    assert a.client.flush(10)
    assert "etcd" in _error(a)
    etcd.start()
    eventually(lambda: b.client.query(path).common_hit == 30, "they have met", _HEAL_S)
    assert a.rank != b.rank
    eventually(lambda: not _error(a) and not _error(b), "both are members", _HEAL_S)


def test_a_cluster_reset_without_etcd_says_so_and_changes_nothing(
    made: Cluster, etcd: EtcdServer
) -> None:
    a = made.start(0)
    path = a.put(30, seed=1)
    etcd.stop()
    with pytest.raises(RadixError, match="etcd"):
        a.client.reset(cluster=True)
    assert a.client.query(path).common_hit == 30
