# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Full attention: tokens are those of an engine without connector, whatever was restored."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from e2e.vllm_offload.engines import BLOCK, Engine, Prompt, prompt

from radixshmem import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

A = prompt(1, 10 * BLOCK + 4)
Y = prompt(2, 6 * BLOCK + 8)


@pytest.fixture
def want(llama: str, reference: Any) -> list[list[int]]:
    """What follows A."""
    tokens: list[list[int]] = reference.tokens(llama, [A])
    return tokens


@pytest.fixture
def start(
    llama: str, cache: RadixServer, start_engine: Callable[..., Engine]
) -> Callable[..., Engine]:
    return functools.partial(start_engine, llama)


@pytest.fixture
def stored(want: list[list[int]], start: Callable[..., Engine]) -> Engine:
    """An engine that has stored A."""
    engine = start()
    engine.store([A])
    return engine


def test_restored_blocks_give_the_same_tokens(
    want: list[list[int]], start: Callable[..., Engine]
) -> None:
    engine = start()
    assert engine.generate([A]) == (want, [0])
    assert engine.generate([A]) == (want, [10 * BLOCK]), "vLLM's own cache"
    engine.settle()
    engine.forget()
    assert engine.generate([A]) == (want, [10 * BLOCK]), "the shared cache"
    engine.assert_idle()


def test_another_engine_restores_what_one_has_stored(
    want: list[list[int]], start: Callable[..., Engine]
) -> None:
    first = start()
    assert first.generate([A]) == (want, [0])
    first.settle()
    second = start()
    assert second.generate([A]) == (want, [10 * BLOCK])
    second.assert_idle()


def test_zeroed_slots_change_the_tokens(
    want: list[list[int]], stored: Engine, region_name: str
) -> None:
    """So that the other tests can fail."""
    with RadixClient(region_name) as client:
        client.wait_ready(10)
        assert client.store is not None
        np.frombuffer(client.store.data_view(), np.uint8)[:] = 0
    tokens, cached = stored.generate([A])
    assert cached == [10 * BLOCK]
    assert tokens != want


def test_a_local_prefix_goes_on_with_restored_blocks(want: list[list[int]], stored: Engine) -> None:
    stored.generate([A[: 4 * BLOCK + 2]], 1)  # 4 blocks are local again
    assert stored.generate([A]) == (want, [10 * BLOCK])
    stored.assert_idle()


def test_generated_blocks_are_stored_for_the_next_turn(
    llama: str, reference: Any, start: Callable[..., Engine]
) -> None:
    first: Prompt = prompt(4, 3 * BLOCK + 4)
    (answer,) = reference.tokens(llama, [first], 70)
    second = [*first, *answer, *prompt(5, 9)]
    want = reference.tokens(llama, [second])
    engine = start()
    assert engine.generate([first], 70) == ([answer], [0])
    engine.settle()
    engine.forget()
    tokens, cached = engine.generate([second])
    assert tokens == want
    assert cached == [5 * BLOCK]  # 100 + 70 - 1 tokens were computed: 5 whole blocks
    engine.assert_idle()


def test_a_shared_prefix_is_stored_once(
    llama: str, reference: Any, start: Callable[..., Engine]
) -> None:
    both = [[*Y, 5, 6], [*Y, 8, 9]]
    want = reference.tokens(llama, both)
    engine = start()
    assert engine.generate(both)[0] == want
    engine.settle()
    client = engine.manager._client
    assert client.total_blocks() == 6
    assert client.index._index.stats()["allocated_slots"] == 6
    engine.forget()
    tokens, cached = engine.generate(both)
    assert tokens == want
    assert cached == [6 * BLOCK, 6 * BLOCK]
    engine.assert_idle()


def test_preempted_requests_come_back(
    llama: str, reference: Any, start: Callable[..., Engine]
) -> None:
    four = [prompt(20 + i, 200) for i in range(4)]
    want = reference.tokens(llama, four, 100)
    engine = start(blocks=34)
    engine.assert_comes_back(four, want)


def test_a_failed_load_is_computed_instead(
    want: list[list[int]], stored: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.fail_copies(monkeypatch)
    assert stored.generate([A])[0] == want
    assert stored.manager.figures.failed_loads == 1
    monkeypatch.undo()
    stored.assert_idle()


def test_a_failed_store_is_no_hit(
    want: list[list[int]], start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start()
    engine.fail_copies(monkeypatch)
    assert engine.generate([A]) == (want, [0])
    engine.settle()
    monkeypatch.undo()
    assert engine.manager.figures.failed_stores > 0
    assert engine.manager._client.mempool_used() == 0, "their slots came back"
    engine.forget()
    assert engine.generate([A]) == (want, [0])
    engine.assert_idle()


def test_a_cache_of_24_blocks_is_enough(
    llama: str, reference: Any, region_name: str, start_engine: Callable[..., Engine]
) -> None:
    prompts = [prompt(30 + i, 7 * BLOCK + 3) for i in range(5)]
    want = reference.tokens(llama, prompts)
    with RadixServer(ServerConfig(region_name, data_bytes=24 * 65536)):
        engine = start_engine(llama)
        for _ in range(2):
            assert engine.generate(prompts)[0] == want
            engine.settle()
            engine.forget()
        assert engine.manager._client.mempool_total() == 24
        engine.assert_idle()


def test_reset_empties_the_shared_cache_too(
    want: list[list[int]], start: Callable[..., Engine]
) -> None:
    engine = start()
    engine.generate([A])
    engine.settle()
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    assert engine.manager._client.total_blocks() == 0
    assert engine.generate([A]) == (want, [0])
    engine.assert_idle()


def test_the_cache_of_another_model_is_refused(
    gemma: str, start: Callable[..., Engine], region_name: str
) -> None:
    start()
    with pytest.raises(Exception, match="fingerprint"):
        Engine(gemma, region_name)
