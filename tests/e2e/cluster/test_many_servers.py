# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Many servers of one machine, all started at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from e2e.cluster.nodes import Cluster, Node, cluster
from e2e.harness import GEOMETRY, eventually

from radixshmem_core.client import RadixClient
from radixshmem_core.server import RadixServer

_DEADLINE_S = 120.0


@pytest.fixture
def made(region_name: str, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(region_name, tmp_path) as empty:
        yield empty


@pytest.mark.parametrize("count", [16, pytest.param(50, marks=pytest.mark.slow)])
def test_all_become_ready_on_ports_of_their_own_and_share(made: Cluster, count: int) -> None:
    configs = [made.config(n, expected_min_nodes=count, settle_ms=500) for n in range(count)]
    with ExitStack() as ends, ThreadPoolExecutor(count) as threads:
        servers = list(threads.map(lambda config: RadixServer(config).start(), configs))
        for server in servers:
            ends.callback(server.close)
        clients = list(threads.map(lambda s: RadixClient(s.name, GEOMETRY), servers))
        for client in clients:
            ends.callback(client.close)
        for client in clients:
            assert client.wait_ready(_DEADLINE_S).world_size == count
        reports = [server.status()["cluster"] for server in servers]
        assert len({report["address"] for report in reports}) == count
        assert {report["rank"] for report in reports} == set(range(count))
        nodes = [Node(servers[n], clients[n]) for n in (0, count // 2, count - 1)]
        paths = [node.put(20, seed=number) for number, node in enumerate(nodes)]
        for node in nodes:
            for path in paths:
                eventually(
                    lambda n=node, p=path: n.client.query(p).common_hit == 20,
                    "each finds the others'",
                    _DEADLINE_S,
                )
