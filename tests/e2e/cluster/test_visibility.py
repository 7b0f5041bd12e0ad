# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""When a path of one node can be found by the others."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster.nodes import Cluster, Node, cluster
from e2e.harness import GEOMETRY, ServerProcess, eventually, path_hashes

from radixshmem_core import client
from radixshmem_core.client import RadixClient
from radixshmem_core.errors import RadixError

_CHUNK_S = 2.0  # a complete chunk is promised within 0.1 s, a tail after 1 s
_TAIL_S = 5.0


@pytest.fixture(scope="module")
def four(module_region: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(module_region, tmp_path_factory.mktemp("registry")) as made:
        for number in range(4):
            # A lookup that a busy machine keeps from running is not what is tested here.
            made.start(number, data_bytes="8M", query_timeout_us=2_000_000)
        made.settle()
        yield made


def _finds(node: Node, hashes: Any, count: int) -> bool:
    return node.client.query(hashes).common_hit == count


def test_every_query_after_a_flush_is_a_hit(four: Cluster) -> None:
    choice = random.Random(1)
    missed = []
    for seed in range(1000):
        writer, reader = choice.sample(four.nodes, 2)
        path = path_hashes(choice.randint(1, 3), seed + 1)
        writer.insert(path)
        assert writer.client.flush(5), f"flush {seed} of node {writer.rank}"
        if not _finds(reader, path, len(path)):
            missed.append((seed, writer.rank, reader.rank))
    assert not missed


def test_a_complete_chunk_is_found_without_a_flush(four: Cluster) -> None:
    writer, *readers = four.nodes
    chunk = writer.client.geometry["register_chunk_tokens"] // writer.client.block_size()
    path = writer.put(chunk, seed=5001)
    for reader in readers:
        eventually(lambda r=reader: _finds(r, path, chunk), "a chunk is found", _CHUNK_S)


def test_a_tail_is_found_once_it_is_idle(four: Cluster) -> None:
    writer, *readers = four.nodes
    path = writer.put(40, seed=5002)
    for reader in readers:
        eventually(lambda r=reader: _finds(r, path, 40), "a tail is found", _TAIL_S)


def test_a_flush_without_time_starts_and_returns(four: Cluster) -> None:
    writer, reader = four.nodes[:2]
    path = writer.put(10, seed=5003)
    writer.client.flush(0)
    eventually(lambda: _finds(reader, path, 10), "what flush(0) began is found", _CHUNK_S)


def test_a_flush_without_time_fails_at_nothing(
    four: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RadixError("Too many open files")

    monkeypatch.setattr(client, "tell", refuse)
    assert four.nodes[0].client.flush(0) is False


def test_a_stopped_keeper_makes_flush_false_and_delays_nobody_else(
    region_name: str, tmp_path: Path, processes: Callable[..., Any]
) -> None:
    with cluster(region_name, tmp_path) as made:
        name = f"{region_name}_stopped"
        flags = ("--data-bytes", "1M", "--node-name", "stopped", "--transfer-backend", "builtin")
        server = processes(ServerProcess, name, "--registry", made.registry, *flags)
        server.event("waiting")
        with RadixClient(name, GEOMETRY) as its_own:
            a, b = made.start(0), made.start(1)
            eventually(lambda: all(made.placed(node, 3) for node in (a, b)), "three are placed")
            made.settle_reads(a, b)
            server.signal(signal.SIGSTOP)
            try:
                for _ in range(200):  # more than may wait for it; nobody waits for an answer
                    assert its_own.flush(0) is False
                _look_while_stopped(a, b)
            finally:
                server.signal(signal.SIGCONT)
            assert its_own.status().mode == "ready"  # a call waits for its place behind those
            eventually(lambda: all(made.placed(node, 3) for node in (a, b)), "it is back")
            a.put(3, seed=9)
            assert a.client.flush(10)
        assert server.stop() == 0


def _look_while_stopped(a: Node, b: Node) -> None:
    for seed in range(20, 40):  # enough for a key of each keeper
        a.put(3, seed)
    begin = time.monotonic()
    assert not a.client.flush(0.5)
    assert time.monotonic() - begin < 5
    assert _finds(a, path_hashes(3, 20), 3)
    eventually(lambda: a.client.flush(1), "the others keep its shards")
    paths = [path_hashes(3, seed) for seed in range(20, 40)]
    eventually(lambda: all(_finds(b, path, 3) for path in paths), "found at the new keepers")
