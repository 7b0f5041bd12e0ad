# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The server or a request goes away under an engine: it goes on, and its tokens stay right."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from e2e.harness import ServerProcess, eventually
from e2e.vllm_offload.engines import BLOCK, Engine, prompt
from vllm import SamplingParams

from radixshmem_core.server import RadixServer

A = prompt(1, 10 * BLOCK + 4)
B = prompt(2, 6 * BLOCK + 4)


@pytest.fixture
def want(llama: str, reference: Any) -> list[list[int]]:
    tokens: list[list[int]] = reference.tokens(llama, [A, B])
    return tokens


@pytest.fixture
def stored(
    llama: str,
    want: Any,
    start_server: Callable[..., ServerProcess],
    start_engine: Callable[..., Engine],
) -> tuple[ServerProcess, Engine]:
    """A server, and an engine that has stored A there."""
    server = start_server(data_bytes="16M")
    server.event("waiting")
    engine = start_engine(llama)
    engine.store([A])
    return server, engine


def test_a_killed_server_leaves_hits_and_stores(
    want: list[list[int]],
    start_server: Callable[..., ServerProcess],
    stored: tuple[ServerProcess, Engine],
) -> None:
    server, engine = stored
    server.kill()
    assert engine.generate([A]) == (want[:1], [10 * BLOCK])
    assert engine.generate([B]) == (want[1:], [0])
    engine.settle()
    engine.forget()
    assert engine.generate([B]) == (want[1:], [6 * BLOCK])
    successor = start_server(data_bytes="16M")
    successor.event("adopted")  # what the engine kept alive
    assert engine.generate([B]) == (want[1:], [6 * BLOCK])
    assert successor.stop() == 0


def test_a_closed_server_leaves_misses_and_is_found_again(
    want: list[list[int]],
    start_server: Callable[..., ServerProcess],
    stored: tuple[ServerProcess, Engine],
) -> None:
    server, engine = stored
    assert server.stop(signal.SIGTERM) == 0
    assert engine.generate([A]) == (want[:1], [0])
    engine.settle()
    successor = start_server(data_bytes="16M")
    successor.event("waiting")
    begin = time.monotonic()

    def restored() -> bool:
        engine.settle()
        engine.forget()
        tokens, cached = engine.generate([A])
        assert tokens == want[:1]
        return cached == [10 * BLOCK]

    eventually(restored, "the engine uses the server that came back")
    assert time.monotonic() - begin < 10, "5 s are promised; the rest is slack"
    assert successor.stop() == 0


def test_an_aborted_request_leaves_nothing_behind(
    llama: str,
    want: list[list[int]],
    cache: RadixServer,
    start_engine: Callable[..., Engine],
) -> None:
    engine = start_engine(llama)
    core = engine.llm.llm_engine
    sampling = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True, detokenize=False)
    for steps in range(5):  # while it waits, loads, runs and stores
        core.add_request(f"aborted-{steps}", {"prompt_token_ids": A}, sampling)
        for _ in range(steps):
            core.step()
        core.abort_request([f"aborted-{steps}"])
        for _ in range(3):
            core.step()
        engine.settle()
        engine.forget()
    assert engine.generate([A])[0] == want[:1]
    engine.assert_idle()
    client = engine.manager._client
    assert client.mempool_used() == client.total_blocks()
