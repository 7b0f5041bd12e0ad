# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Pages that an SGLang server of one node has stored are restored by one of another node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e.harness import eventually
from e2e.members import cluster_figures, member_flags, wait_live
from e2e.sglang_hicache.load import in_background
from e2e.sglang_hicache.node import Gates, Node, prompt, wait_reached
from sglang_server import PAGE_TOKENS, SGLangServer

A = prompt(61, 40)
B = prompt(62, 40)


@dataclass
class Pair:
    """Two nodes of a cluster, and the SGLang server on each."""

    nodes: tuple[Node, Node]
    engines: tuple[SGLangServer, SGLangServer]


@pytest.fixture(params=["tcp", pytest.param("shm", marks=pytest.mark.slow)])
def pair(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    node: Node,
    native: SGLangServer,
    both: tuple[SGLangServer, SGLangServer],
) -> Iterator[Pair]:
    """The servers of the other tests, moved to nodes of their own, and back again at the end."""
    names = [f"/radixtest-{os.getpid()}-{request.param}-{each}-" for each in "ab"]
    there, here = (
        Node(name, *member_flags(tmp_path, each, request.param))
        for name, each in zip(names, "ab", strict=True)
    )
    try:
        for each, engine in zip((there, here), both, strict=True):
            each.start()
            move(engine, each)
        wait_live(*names)
        # Each reader asks the peer's server for a stream, whatever it then reads over.
        eventually(lambda: cluster_figures(names[0])["responder"]["accepted"], "b reads a")
        yield Pair((there, here), both)
    finally:
        for engine in both:
            move(engine, node)
        there.close()
        here.close()


def move(engine: SGLangServer, node: Node) -> None:
    """From the storage that it has to that of a node, with nothing in its own memory."""
    engine.client.flush_cache()
    engine.client.detach()
    extra = {"server_name": node.name, "prefetch_threshold": PAGE_TOKENS}
    engine.client.attach("radixshmem", extra, "wait_complete")


def test_pages_of_one_node_are_restored_on_another(pair: Pair) -> None:
    (there, here), (first, second) = pair.nodes, pair.engines
    cold = first.client.generate(A)
    assert cold.cached == {}
    there.wait_pages(40)
    assert there.client.flush()
    assert here.client.total_blocks() == 0
    restored = second.client.generate(A)
    assert restored.cached == {"storage": 40 * PAGE_TOKENS}
    assert restored.agrees(cold)
    assert cluster_figures(here.name)["pulls"]["pulled_blocks"] == 40
    assert cluster_figures(there.name)["pulls"]["jobs"] == 0
    there.wait_pages(40)
    here.wait_pages(40)
    second.client.flush_cache()
    jobs = cluster_figures(here.name)["pulls"]["jobs"]
    assert second.client.generate(A).cached == {"storage": 40 * PAGE_TOKENS}
    assert cluster_figures(here.name)["pulls"]["jobs"] == jobs, "they are local now"
    for node in pair.nodes:
        node.assert_idle()


def test_pages_of_a_node_that_dies_before_the_fetch_are_computed(pair: Pair, gates: Gates) -> None:
    (there, here), (first, second) = pair.nodes, pair.engines
    cold = first.client.generate(B)
    there.wait_pages(40)
    assert there.client.flush()
    hits = hit_tokens(second)
    with gates.hold("asked") as reached:
        answer = in_background(second.client, B)
        wait_reached(reached)
        there.kill()
    computed = answer.result(60)
    assert computed.cached == {}
    assert computed.agrees(cold)
    here.wait_pages(40)
    here.assert_idle()
    second.client.generate(A[:8], 1)  # SGLang counts in the steps of its scheduler
    eventually(lambda: hit_tokens(second) - hits == 40 * PAGE_TOKENS, "they had been found")
    there.start(expect="adopted")


def hit_tokens(engine: SGLangServer) -> float:
    """That its storage said to have, since the start."""
    return engine.client.metric("storage_prefetch_hit_tokens_total")
