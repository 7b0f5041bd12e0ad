# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Pages come back from radixshmem: how many is told, and tokens and log probabilities are equal."""

from __future__ import annotations

import numpy as np
import pytest
from e2e.sglang_hicache.node import Node, prompt
from sglang_server import PAGE_TOKENS, SGLangServer

A = prompt(1, 40)


def test_other_bytes_in_the_slots_are_other_tokens(node: Node, native: SGLangServer) -> None:
    """What is restored is what was stored: nothing else remembers it."""
    cold = native.client.generate(A, 12)
    node.wait_pages(40)
    native.client.flush_cache()
    store = node.client.store
    assert store is not None
    tag = node.page_bytes()
    for slot in range(node.client.mempool_total()):
        np.frombuffer(store.slot_view(slot), np.uint8)[:tag] = 0
    zeroed = native.client.generate(A, 12)
    assert zeroed.cached == {"storage": 40 * PAGE_TOKENS}
    assert zeroed.tokens != cold.tokens
    assert not zeroed.agrees(cold)


def test_a_hit_on_the_device_is_continued_from_storage(node: Node, native: SGLangServer) -> None:
    cold = native.client.generate(A)
    node.wait_pages(40)
    native.client.flush_cache()
    begin = native.client.generate(A[: 20 * PAGE_TOKENS + 1])
    assert begin.cached == {"storage": 20 * PAGE_TOKENS}
    whole = native.client.generate(A)
    assert whole.cached == {"device": 20 * PAGE_TOKENS, "storage": 20 * PAGE_TOKENS}
    assert whole.agrees(cold)


def test_a_hit_on_the_device_that_was_computed_is_continued_from_storage(
    node: Node, native: SGLangServer, both: tuple[SGLangServer, SGLangServer]
) -> None:
    """The keys of a path are the same, whether its begin was computed here or restored."""
    cold = both[1].client.generate(A)
    node.wait_pages(40)
    node.client.reset()
    computed = native.client.generate(A[: 20 * PAGE_TOKENS + 1])
    assert computed.cached == {}
    both[1].client.flush_cache()
    assert both[1].client.generate(A[:-1]).cached == {"storage": 20 * PAGE_TOKENS}
    node.wait_pages(40)
    whole = native.client.generate(A)
    assert whole.cached == {"device": 20 * PAGE_TOKENS, "storage": 20 * PAGE_TOKENS}
    assert whole.agrees(cold)


def test_a_shared_prefix_is_restored_and_its_other_end_computed(
    node: Node, native: SGLangServer
) -> None:
    other = A[: 15 * PAGE_TOKENS + 8] + prompt(2, 10)
    cold = native.client.generate(other)
    native.client.flush_cache()
    node.client.reset()
    native.client.generate(A)
    node.wait_pages(40)
    native.client.flush_cache()
    answer = native.client.generate(other)
    assert answer.cached == {"storage": 15 * PAGE_TOKENS}
    assert answer.agrees(cold)


def test_generated_tokens_come_back_in_the_next_turn(node: Node, native: SGLangServer) -> None:
    first = native.client.generate(A, 2 * PAGE_TOKENS)
    turn = A + first.tokens + prompt(3, 2)
    cold = native.client.generate(turn)
    stored = node.client.total_blocks
    node.wait_pages((len(turn) + len(cold.tokens) - 1) // PAGE_TOKENS)
    assert stored() > 42
    native.client.flush_cache()
    restored = native.client.generate(turn)
    assert restored.cached == {"storage": (len(turn) - 1) // PAGE_TOKENS * PAGE_TOKENS}
    assert restored.agrees(cold)


def test_a_prompt_of_768_tokens_as_sglang_tests_its_backends(
    node: Node, native: SGLangServer
) -> None:
    """Computed, flushed, and then more than 700 of 768 tokens cached; twice."""
    tokens = prompt(4, 48, 0)
    cold = native.client.generate(tokens, 150)
    assert cold.cached == {}
    node.wait_pages((768 + 149) // PAGE_TOKENS)
    for _ in range(2):
        native.client.flush_cache()
        again = native.client.generate(tokens, 150)
        assert again.cached.get("storage", 0) > 700
        assert again.agrees(cold)


@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
def test_pages_of_other_tenants_are_not_found(node: Node, native: SGLangServer, field: str) -> None:
    client = native.client
    cold = client.generate(A, **{field: "a"})
    node.wait_pages(40)
    client.flush_cache()
    other = {"cache_salt": "extra_key", "extra_key": "cache_salt"}[field]
    for wrong in ({}, {field: "b"}, {other: "a"}, {field: "a", other: "a"}):
        assert client.generate(A, **wrong).cached == {}, wrong
    node.wait_pages(5 * 40)
    client.flush_cache()
    mine = client.generate(A, **{field: "a"})
    assert mine.cached == {"storage": 40 * PAGE_TOKENS}
    assert mine.agrees(cold)
