# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Requests that go on, come back or go away: turns, streamed input, preemption, aborts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from e2e.vllm_offload.engines import BLOCK, Engine, Prompt, prompt
from e2e.vllm_offload.stepping import MOST_STEPS, SlowCopies, Steps
from vllm import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler

from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

FIRST = prompt(1, 3 * BLOCK + 4)
COUNT = 150  # tokens after each of them
FOUR = [prompt(20 + i, 200) for i in range(4)]
# Before 0.32 vLLM goes on from the hash of the token that a session takes back.
DROPS_HASHES = "block_hashes[" in inspect.getsource(Scheduler._update_request_as_session)


@pytest.fixture
def steps(engine: Engine) -> Steps:
    return Steps(engine)


@pytest.fixture(scope="module")
def generated(llama: str, reference: Any) -> list[list[int]]:
    """What follows each of FOUR, and FIRST."""
    tokens: list[list[int]] = reference.tokens(llama, [*FOUR, FIRST], COUNT)
    return tokens


@pytest.fixture(scope="module")
def four(generated: list[list[int]]) -> list[list[int]]:
    return generated[:4]


@pytest.fixture(scope="module")
def streamed(
    llama: str, reference: Any, generated: list[list[int]]
) -> tuple[list[int], Prompt, list[int]]:
    """60 tokens after FIRST; what a session then holds; and what follows that."""
    answer = generated[4][:60]
    whole = [*FIRST, *answer[:-1], *prompt(2, 50)]
    return answer, whole, reference.tokens(llama, [whole])[0]


@pytest.fixture(scope="module")
def shared(llama: str, four: Any, streamed: Any, module_region: str) -> Iterator[Engine]:
    """An engine that has to preempt: 34 blocks of its own."""
    with RadixServer(ServerConfig(module_region, data_bytes="16M")):
        engine = Engine(llama, module_region, blocks=34)
        yield engine
        engine.close()


@pytest.fixture
def engine(shared: Engine) -> Iterator[Engine]:
    yield shared
    shared.assert_clean()


def test_preemption_while_transfers_take_several_steps(
    engine: Engine, steps: Steps, four: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    preempted: list[str] = []
    preempt = scheduler._preempt_request

    def count(request: Any, *rest: Any, **options: Any) -> None:
        preempted.append(request.request_id)
        preempt(request, *rest, **options)

    monkeypatch.setattr(scheduler, "_preempt_request", count)
    copies = SlowCopies(engine, monkeypatch, steps=3)
    for _ in range(3):
        names = [steps.add(each, COUNT) for each in FOUR]
        assert [steps.finish(name)[0] for name in names] == four
    copies.finish()
    engine.settle()
    assert preempted
    engine.forget()
    tokens, cached = engine.generate(FOUR[:2], COUNT)
    assert tokens == four[:2]
    assert cached == [6 * BLOCK, 6 * BLOCK]


def test_a_request_is_preempted_twice(
    engine: Engine, steps: Steps, four: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    copies = SlowCopies(engine, monkeypatch, steps=3)
    names = [steps.add(each, COUNT) for each in FOUR[:2]]
    for _ in range(2):
        steps.step(10)
        steps.until(lambda: len(scheduler.running) == 2 and not copies.waiting("load"), "both run")
        assert engine.llm.reset_prefix_cache(reset_running_requests=True)
        steps.until(lambda: copies.waiting("load"), "what they had stored is loaded")
    finished = [steps.finish(name) for name in names]
    assert [tokens for tokens, _ in finished] == four[:2]
    copies.finish()


def test_an_abort_of_each_kind_while_others_are_preempted(
    engine: Engine, steps: Steps, four: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = SlowCopies(engine, monkeypatch, steps=2)
    for wait in (0, 1, 3, 7, 30):
        kept = [steps.add(each, COUNT) for each in FOUR[:3]]
        gone = steps.add(FOUR[3], COUNT)
        queued = steps.add(FOUR[3], COUNT)  # there is no place for a fifth
        steps.step(wait)
        steps.abort(queued)
        steps.abort(gone)
        assert [steps.finish(name)[0] for name in kept] == four[:3]
        engine.settle()
        engine.forget()
    copies.finish()


def test_a_streamed_session_drops_its_last_token(
    engine: Engine, streamed: tuple[list[int], Prompt, list[int]]
) -> None:
    """The fifth block of the first turn ends with a token that the session takes back."""
    answer, whole, want = streamed
    core = engine.llm.llm_engine

    def send(tokens: Prompt, count: int) -> list[int]:
        sampling = SamplingParams(
            temperature=0, max_tokens=count, ignore_eos=True, detokenize=False
        )
        core.engine_core.add_request(
            core.input_processor.process_inputs(
                "session",
                {"prompt_token_ids": tokens},
                sampling,
                core.get_supported_tasks(),
                resumable=True,
            )
        )
        got: list[int] = []
        for _ in range(MOST_STEPS):
            for output in core.engine_core.get_output().outputs:
                got += output.new_token_ids
            if len(got) >= count:
                break
        return got

    request_hashes = engine.hashes([*FIRST, *answer])
    assert len(request_hashes) == 5
    assert send(FIRST, 60) == answer
    assert send(whole[len(FIRST) + 59 :], 16) == want
    core.engine_core.abort_requests(["session"])
    engine.settle()
    engine.forget()
    assert engine.generate([whole]) == ([want], [(6 if DROPS_HASHES else 4) * BLOCK])
