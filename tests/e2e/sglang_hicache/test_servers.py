# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The radix-server goes, comes, or is full: SGLang goes on, and its tokens stay right."""

from __future__ import annotations

from e2e.harness import eventually
from e2e.sglang_hicache.load import Load, in_background
from e2e.sglang_hicache.node import BACK_S, Gates, Node, prompt, wait_reached
from sglang_client import SGLangClient
from sglang_server import PAGE_TOKENS, SGLangServer

A = prompt(11, 40)
B = prompt(12, 10)
SLOT_BYTES = 36864  # of a page of the tiny model, aligned


def test_a_killed_server_leaves_hits_and_stores(node: Node, native: SGLangServer) -> None:
    client = native.client
    cold = client.generate(A)
    node.wait_pages(40)
    client.flush_cache()
    node.kill()
    restored = client.generate(A)
    assert restored.cached == {"storage": 40 * PAGE_TOKENS}
    assert restored.agrees(cold)
    other = client.generate(B)
    node.wait_pages(50)
    client.flush_cache()
    assert client.generate(B).cached == {"storage": 10 * PAGE_TOKENS}
    node.start(expect="adopted")
    client.flush_cache()
    again = client.generate(B)
    assert again.cached == {"storage": 10 * PAGE_TOKENS}
    assert again.agrees(other)


def test_a_closed_server_leaves_misses_and_is_found_again(node: Node, native: SGLangServer) -> None:
    client = native.client
    cold = client.generate(A)
    node.wait_pages(40)
    node.stop()
    client.flush_cache()
    missed = client.generate(A)
    assert missed.cached == {}
    assert missed.agrees(cold)
    node.start()
    node.wait_attached(2)
    client.flush_cache()
    client.generate(A)
    node.wait_pages(40)
    client.flush_cache()
    restored = client.generate(A)
    assert restored.cached == {"storage": 40 * PAGE_TOKENS}
    assert restored.agrees(cold)


def test_servers_come_and_go_under_load(node: Node, native: SGLangServer) -> None:
    with Load(native.client, [prompt(20 + i, 10) for i in range(4)]) as load:
        load.wait_restored()
        node.kill()
        load.wait_rounds(1)
        load.wait_restored()  # also without a server
        node.start(expect="adopted")
        load.wait_rounds(1)
        load.wait_restored()
        node.stop()
        load.wait_rounds(1)
        node.start()
        eventually(lambda: node.client.total_blocks() > 0, "it stores again", BACK_S)
        load.wait_restored()


def test_a_full_server_keeps_what_came_last(node: Node, native: SGLangServer) -> None:
    node.stop()
    node.start(str(24 * SLOT_BYTES))
    node.wait_attached(2)
    client = native.client
    assert node.client.mempool_total() == 24
    prompts = [prompt(30 + i, 10) for i in range(4)]
    want = [client.generate(each) for each in prompts]
    client.flush_cache()
    for _ in range(2):
        for each, computed in zip(prompts, want, strict=True):
            assert client.generate(each).agrees(computed)
    eventually(lambda: _restored(client, prompts[-1]) == 10 * PAGE_TOKENS, "the last is there")
    assert client.generate(A).cached == {}  # of more pages than there are slots
    cold = client.generate(A)
    client.flush_cache()
    assert client.generate(A).agrees(cold)
    node.assert_idle()
    assert node.client.total_blocks() <= 24
    node.stop()


def _restored(client: SGLangClient, tokens: list[int]) -> int:
    client.flush_cache()
    return client.generate(tokens).cached.get("storage", 0)


def test_pages_that_go_between_the_question_and_the_fetch_are_computed(
    node: Node, native: SGLangServer, gates: Gates
) -> None:
    client = native.client
    cold = client.generate(A)
    node.wait_pages(40)
    client.flush_cache()
    with gates.hold("asked") as reached:
        answer = in_background(client, A)
        wait_reached(reached)
        total = node.client.mempool_total()
        slots = node.client.allocate_slots(total - 15)  # what is evicted is the end of the path
        node.client.recycle_slots(slots)
        left = node.client.total_blocks()
        assert 0 < left <= 15
    restored = answer.result(60)
    assert restored.cached == {"storage": left * PAGE_TOKENS}
    assert restored.agrees(cold)
    node.wait_pages(40)
    with gates.hold("asked") as reached:
        client.flush_cache()
        answer = in_background(client, A)
        wait_reached(reached)
        node.client.reset()
    missed = answer.result(60)
    assert missed.cached == {}
    assert missed.agrees(cold)


def test_a_request_that_is_aborted_while_it_fetches_leaves_nothing(
    node: Node, native: SGLangServer, gates: Gates
) -> None:
    client = native.client
    cold = client.generate(A)
    node.wait_pages(40)
    client.flush_cache()
    with gates.hold("read") as reached:
        answer = in_background(client, A, rid="aborted")
        wait_reached(reached)
        assert node.client.index._index.pins() != []
        client.abort("aborted")
    answer.exception(60)
    node.assert_idle()
    client.flush_cache()
    restored = client.generate(A)
    assert restored.cached == {"storage": 40 * PAGE_TOKENS}
    assert restored.agrees(cold)
