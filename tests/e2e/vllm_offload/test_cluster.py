# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""An engine restores what an engine of another node has stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import ServerProcess, eventually
from e2e.members import cluster_figures, member_flags, wait_live
from e2e.vllm_offload.engines import BLOCK, Engine, prompt

from radixshmem import RadixClient
from radixshmem.integrations.vllm_offload.metrics import PREFIX

A = prompt(1, 10 * BLOCK + 4)


@pytest.fixture(params=["shm", pytest.param("tcp", marks=pytest.mark.slow)])
def transport(request: pytest.FixtureRequest) -> str:
    """Over which indexes are read."""
    kind: str = request.param
    return kind


@pytest.fixture
def nodes(transport: str, region_name: str, tmp_path: Path) -> Iterator[list[str]]:
    """The names of two servers."""
    names = [f"{region_name}{node}" for node in "ab"]
    size = ["--data-bytes", "16M", "--swa-ratio", "0.4"]
    servers = [
        ServerProcess(name, *size, *member_flags(tmp_path, name[-1], transport)) for name in names
    ]
    try:
        for server in servers:
            server.event("waiting")
        yield names
    finally:
        for server in servers:
            server.stop()


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_an_engine_restores_what_one_of_another_node_has_stored(
    kind: str,
    request: pytest.FixtureRequest,
    reference: Any,
    transport: str,
    nodes: list[str],
    start_engine: Callable[..., Engine],
) -> None:
    """Gemma's windows have slots of their own, and come with the blocks of full attention."""
    model = request.getfixturevalue(kind)
    want = reference.tokens(model, [A])
    first, second = nodes
    engine = start_engine(model, first)
    assert engine.generate([A]) == (want, [0])
    engine.settle()
    with RadixClient(first) as there:
        there.wait_ready(10)
        assert there.total_blocks() == 10
        engine = start_engine(model, second)
        wait_live(*nodes)
        assert there.flush()
        here = engine.manager._client
        eventually(lambda: reads(here, 1 - here.rank()) == transport, "the engine reads the peer")
        assert here.total_blocks() == 0

        assert engine.generate([A]) == (want, [10 * BLOCK])
        engine.assert_idle()
        assert cluster_figures(second)["pulls"]["pulled_blocks"] == 10
        assert cluster_figures(first)["leases"]["granted"] == 1
        seen = {m.name: getattr(m, "value", None) for m in engine.llm.get_metrics()}
        assert seen[PREFIX + "pulled_blocks"] == 10
        assert seen["vllm:external_prefix_cache_hits"] == 10 * BLOCK
        assert (there.total_blocks(), here.total_blocks()) == (10, 10)
        assert cluster_figures(first)["pulls"]["jobs"] == 0

        engine.forget()
        assert engine.generate([A]) == (want, [10 * BLOCK])
        assert cluster_figures(second)["pulls"]["jobs"] == 1, "they are local now"


def reads(client: RadixClient, rank: int) -> str:
    """The transport over which the client reads this peer; empty when it does not."""
    rows = {row["rank"]: row for row in client.peer_connections() if not row["suspect"]}
    return str(rows[rank]["transport"]) if rank in rows else ""
