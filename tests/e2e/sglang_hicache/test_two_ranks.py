# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Two TP ranks, each with pages of its own: they agree on what is restored. `page_first`.

The last of these tests kills the server.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.harness import eventually
from e2e.sglang_hicache.conftest import START_S, StartSGLang, make_node
from e2e.sglang_hicache.load import in_background
from e2e.sglang_hicache.node import BACK_S, Gates, Node, prompt, wait_reached
from e2e.sglang_hicache.rank_pages import damage, keep_only, path_of
from sglang_client import Answer
from sglang_server import PAGE_TOKENS, SGLangServer, native_flags

A, B = prompt(61, 40), prompt(62, 10)
WHOLE = {"storage": 40 * PAGE_TOKENS}


@pytest.fixture(scope="module")
def own_node() -> Iterator[Node]:
    yield from make_node("ranks")


@pytest.fixture(scope="module")
def ranks(own_node: Node, start_sglang: StartSGLang) -> Iterator[SGLangServer]:
    """Started without a radix-server."""
    flags = (*native_flags(own_node.name), "--hicache-mem-layout", "page_first", "--tp", "2")
    server = start_sglang(*flags, SGLANG_CPU_OMP_THREADS_BIND="0|1")
    yield server.wait(START_S)
    server.stop()


@pytest.fixture
def stored(own_node: Node, ranks: SGLangServer) -> Answer:
    """A is stored by both ranks, and by nobody remembered."""
    ranks.client.flush_cache()
    own_node.client.reset()
    cold = ranks.client.generate(A)
    assert cold.cached == {}
    own_node.wait_pages(2 * 40)
    ranks.client.flush_cache()
    return cold


def test_a_server_may_come_after_sglang(own_node: Node, ranks: SGLangServer) -> None:
    client = ranks.client
    cold = client.generate(A)
    client.flush_cache()
    assert client.generate(A).cached == {}
    own_node.start()
    own_node.wait_attached(2)
    client.flush_cache()
    client.generate(A)
    own_node.wait_pages(2 * 40)
    client.flush_cache()
    restored = client.generate(A)
    assert restored.cached == WHOLE
    assert restored.agrees(cold)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_misses_pages(
    own_node: Node, ranks: SGLangServer, stored: Answer, rank: int
) -> None:
    short = {rank: path_of(A, rank)[:25], 1 - rank: path_of(A, 1 - rank)}
    keep_only(own_node.client, short)
    answer = ranks.client.generate(A)
    assert answer.cached == {"storage": 25 * PAGE_TOKENS}
    assert answer.agrees(stored)
    own_node.wait_pages(2 * 40)
    ranks.client.flush_cache()
    assert ranks.client.generate(A).cached == WHOLE


def test_a_rank_with_a_damaged_page(own_node: Node, ranks: SGLangServer, stored: Answer) -> None:
    damage(own_node.client, path_of(A, 1), 7)
    answer = ranks.client.generate(A)
    assert answer.cached == {"storage": 7 * PAGE_TOKENS}
    assert answer.agrees(stored)

    def mended() -> bool:
        ranks.client.flush_cache()
        return ranks.client.generate(A).cached == WHOLE

    eventually(mended, "the page is written anew", BACK_S)
    assert ranks.client.generate(A).agrees(stored)


def test_a_slow_rank_is_waited_for(
    own_node: Node, ranks: SGLangServer, stored: Answer, gates: Gates
) -> None:
    with gates.hold("read", 1) as reached:
        answer = in_background(ranks.client, A)
        wait_reached(reached)
        assert not answer.done()
    restored = answer.result(60)
    assert restored.cached == WHOLE
    assert restored.agrees(stored)


def test_a_rank_that_is_too_slow_is_not_waited_for(
    own_node: Node, ranks: SGLangServer, stored: Answer, gates: Gates
) -> None:
    """With SGLang's own default policy.

    SGLang takes itself for idle while the slow rank still reads. A flush in that moment leaves the
    other rank waiting for it, and ends the engine; what is read after it tells that it is done.
    """
    client = ranks.client
    client.generate(B)
    own_node.wait_pages(2 * 40 + 2 * 10)
    client.flush_cache()
    client.attach("radixshmem", {}, "timeout")
    try:
        with gates.hold("read", 1) as reached:
            answer = in_background(client, A)
            wait_reached(reached)
            computed = answer.result(60)
        assert computed.cached == {}
        assert computed.agrees(stored)
    finally:
        client.attach("radixshmem", {}, "wait_complete")
    assert client.generate(B).cached == {"storage": 10 * PAGE_TOKENS}
    own_node.assert_idle()
    client.flush_cache()
    assert client.generate(A).cached == WHOLE


def test_killed_ranks_leave_no_pins_and_no_slots(
    own_node: Node, ranks: SGLangServer, stored: Answer, gates: Gates
) -> None:
    client = own_node.client
    with gates.hold("write", 0) as write_0, gates.hold("write", 1) as write_1:
        ranks.client.generate(B)
        wait_reached(write_0)
        wait_reached(write_1)
        with gates.hold("read", 0) as read_0, gates.hold("read", 1) as read_1:
            answer = in_background(ranks.client, A)
            wait_reached(read_0)
            wait_reached(read_1)
            assert len(client.index._index.pins()) >= 2
            assert client.mempool_used() == 2 * 40 + 2 * 10
            assert client.total_blocks() == 2 * 40
            ranks.kill()
    assert answer.exception(60) is not None
    own_node.assert_idle()
    assert client.total_blocks() == 2 * 40
    assert own_node.engines() == 0
