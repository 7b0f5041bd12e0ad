# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Full caches, busy neighbours, slow transfers and resets: tokens stay right, nothing is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from e2e.harness import Process
from e2e.vllm_offload.engines import BLOCK, Engine, prompt
from e2e.vllm_offload.stepping import SlowCopies, Steps

from radixshmem import ComponentType, RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

A = prompt(1, 10 * BLOCK + 4)
B = prompt(2, 6 * BLOCK + 4)
LONG = prompt(3, 30 * BLOCK + 4)
SLOTS = 24


@pytest.fixture(scope="module")
def want(llama: str, reference: Any) -> dict[str, list[int]]:
    return dict(zip("ABL", reference.tokens(llama, [A, B, LONG]), strict=True))


@pytest.fixture(scope="module")
def shared(llama: str, want: Any, module_region: str) -> Iterator[Engine]:
    """An engine on a server of 24 slots."""
    config = ServerConfig(module_region, data_bytes=SLOTS * 65536, background_evict_ratio=0)
    with RadixServer(config):
        engine = Engine(llama, module_region)
        yield engine
        engine.close()


class Neighbour:
    """Another client of the server, that takes slots and watches what happens to their bytes."""

    def __init__(self, client: RadixClient) -> None:
        self.client = client
        self.slots = np.empty(0, np.int32)

    def take(self, leave: int = 0) -> int:
        """Allocate all that can be had but `leave`, write into it, and say how many these are."""
        got = self.client.allocate_slots(SLOTS)
        self.client.recycle_slots(got[:leave])
        for slot in got[leave:]:
            self.client.slot_view(int(slot))[:] = self._mark(slot)
        self.slots = np.concatenate([self.slots, got[leave:]])
        return len(got) - leave

    def evict(self) -> None:
        """Empty the cache, as far as nothing is pinned."""
        self.take()
        self.give_back()

    def check(self) -> None:
        """Nobody else has written there."""
        for slot in self.slots:
            assert self.client.slot_view(int(slot)) == self._mark(slot)

    def _mark(self, slot: int) -> bytes:
        return bytes([200 + slot % 50]) * self.client.store.pool(ComponentType.FULL).slot_bytes

    def give_back(self) -> None:
        self.check()
        self.client.recycle_slots(self.slots)
        self.slots = np.empty(0, np.int32)


@pytest.fixture
def engine(shared: Engine) -> Iterator[Engine]:
    """It with an empty cache. At the end nothing is pinned, pending or out of the pool."""
    yield shared
    shared.assert_clean()


@pytest.fixture
def neighbour(engine: Engine, module_region: str) -> Iterator[Neighbour]:
    with RadixClient(module_region) as client:
        client.wait_ready(10)
        neighbour = Neighbour(client)
        yield neighbour
        neighbour.give_back()


@pytest.fixture
def steps(engine: Engine) -> Steps:
    return Steps(engine)


@pytest.fixture
def slow(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowCopies]:
    copies = SlowCopies(engine, monkeypatch)
    yield copies
    copies.finish()
    engine.settle()
    monkeypatch.undo()


# ------------------------------------------------------------ full


def test_a_full_cache_stores_nothing_and_says_nothing(
    engine: Engine,
    neighbour: Neighbour,
    want: dict[str, list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert neighbour.take() == SLOTS
    with caplog.at_level(logging.INFO):
        assert engine.generate([A]) == ([want["A"]], [0])
        engine.settle()
    assert caplog.records == []
    engine.forget()
    assert engine.generate([A]) == ([want["A"]], [0])
    assert engine.manager._client.total_blocks() == 0


def test_a_nearly_full_cache_stores_the_head(
    engine: Engine, neighbour: Neighbour, want: dict[str, list[int]]
) -> None:
    neighbour.take(leave=4)
    assert engine.generate([A]) == ([want["A"]], [0])
    engine.settle()
    engine.forget()
    assert engine.generate([A]) == ([want["A"]], [4 * BLOCK])


def test_a_prompt_may_be_longer_than_the_cache(
    engine: Engine, neighbour: Neighbour, want: dict[str, list[int]]
) -> None:
    assert engine.generate([LONG]) == ([want["L"]], [0])
    engine.settle()
    neighbour.evict()
    assert engine.generate([LONG]) == ([want["L"]], [30 * BLOCK]), "all are local, and offered"
    engine.settle()
    assert engine.manager._client.total_blocks() == SLOTS
    engine.forget()
    assert engine.generate([LONG]) == ([want["L"]], [SLOTS * BLOCK])


# ------------------------------------------------------------ evicted


def test_evicted_blocks_are_stored_again_from_local_ones(
    engine: Engine, neighbour: Neighbour, want: dict[str, list[int]]
) -> None:
    assert engine.generate([A]) == ([want["A"]], [0])
    engine.settle()
    neighbour.evict()
    client = engine.manager._client
    assert client.total_blocks() == 0
    stored = engine.manager.figures.stored_blocks
    assert engine.generate([A]) == ([want["A"]], [10 * BLOCK]), "vLLM's own cache"
    engine.settle()
    assert client.total_blocks() == 10
    assert engine.generate([A]) == ([want["A"]], [10 * BLOCK])
    engine.settle()
    assert engine.manager.figures.stored_blocks == stored + 10, "present ones are not stored again"
    engine.forget()
    assert engine.generate([A]) == ([want["A"]], [10 * BLOCK])


def test_what_was_found_is_not_evicted_before_it_is_loaded(
    engine: Engine,
    neighbour: Neighbour,
    steps: Steps,
    slow: SlowCopies,
    want: dict[str, list[int]],
) -> None:
    with slow.passing():
        engine.store([B, A])
    name = steps.add(A)
    steps.until(lambda: slow.waiting("load"), "a load")
    assert neighbour.take() == SLOTS - 10
    slow.finish()
    assert steps.finish(name) == (want["A"], 10 * BLOCK)


def test_a_neighbour_that_evicts_all_the_time_changes_no_token(
    engine: Engine,
    want: dict[str, list[int]],
    module_region: str,
    processes: Callable[..., Any],
) -> None:
    evictor: Process = processes(Process, "-c", _EVICTOR, module_region)
    assert evictor.line() == "ready"
    for _ in range(10):
        tokens, _ = engine.generate([A, B])
        assert tokens == [want["A"], want["B"]]
        engine.forget()
    evictor.tell("stop")
    rounds = int(evictor.line())
    assert rounds > 10
    assert evictor.wait() == 0


_EVICTOR = """
import sys, threading
from radixshmem import RadixClient

stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
with RadixClient(sys.argv[1]) as client:
    client.wait_ready(10)
    print("ready", flush=True)
    rounds = 0
    while not stop.is_set():
        slots = client.allocate_slots(client.mempool_total())
        for slot in slots:
            client.slot_view(int(slot))[:64] = bytes(64)
        client.recycle_slots(slots)
        rounds += 1
    print(rounds, flush=True)
"""


# ------------------------------------------------------------ same prefix in one step


def test_two_requests_load_a_shared_prefix(
    engine: Engine, want: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.store([A])
    stored = engine.manager.figures.stored_blocks
    copies = SlowCopies(engine, monkeypatch, steps=3)
    assert engine.generate([A, A]) == ([want["A"]] * 2, [10 * BLOCK] * 2)
    copies.finish()
    engine.settle()
    assert engine.manager.figures.stored_blocks == stored


# ------------------------------------------------------------ slow transfers


def test_aborts_while_transfers_run(
    engine: Engine, steps: Steps, slow: SlowCopies, want: dict[str, list[int]]
) -> None:
    steps.abort(steps.add(A))  # queued
    storing = steps.add(A)
    steps.until(lambda: slow.waiting("store"), "a store")
    steps.abort(storing)
    steps.step(3)
    with slow.passing():
        steps.until(lambda: engine.manager.stores.empty, "the end of the stores")
        engine.forget()
    loading = steps.add(A)
    steps.until(lambda: slow.waiting("load"), "a load")
    steps.abort(loading)
    steps.step(3)
    assert engine.manager._client.index._index.pins(), "it is still being read"
    slow.finish()
    engine.settle()
    assert engine.manager._client.index._index.pins() == []
    engine.forget()
    assert engine.generate([A])[0] == [want["A"]]


# ------------------------------------------------------------ reset


def test_slots_that_are_being_written_at_a_reset_come_back_later(
    engine: Engine,
    neighbour: Neighbour,
    steps: Steps,
    slow: SlowCopies,
    want: dict[str, list[int]],
) -> None:
    name = steps.add(A)
    steps.until(lambda: slow.waiting("store"), "a store")
    reset = engine.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    assert reset
    client = engine.manager._client
    assert client.total_blocks() == 0
    # The plan of a step that vLLM had begun to make before the reset.
    assert engine.manager.quarantine.note_step() == []
    neighbour.take()
    assert 0 < len(neighbour.slots) < SLOTS, "what may still be written is nobody else's"
    slow.finish()
    neighbour.check()
    assert steps.finish(name)[0] == want["A"]
    engine.settle()
    neighbour.take()
    assert len(neighbour.slots) + client.mempool_used() >= SLOTS


def test_slots_that_are_being_loaded_at_a_reset_keep_their_bytes(
    engine: Engine,
    neighbour: Neighbour,
    steps: Steps,
    slow: SlowCopies,
    want: dict[str, list[int]],
) -> None:
    with slow.passing():
        engine.store([A])
    name = steps.add(A)
    steps.until(lambda: slow.waiting("load"), "a load")
    assert not engine.llm.reset_prefix_cache(reset_connector=True), "vLLM's own is in use"
    neighbour.take()
    assert len(neighbour.slots) == SLOTS - 10
    assert steps.finish(name)[0] == want["A"]


def test_a_reset_forgets_aborted_loads(
    engine: Engine, steps: Steps, slow: SlowCopies, want: dict[str, list[int]]
) -> None:
    with slow.passing():
        engine.store([A])
    for told in (False, True):  # whether vLLM has told the manager of the request's end
        name = steps.add(A)
        steps.until(lambda: slow.waiting("load"), "a load")
        steps.abort(name)
        steps.step(2 if told else 0)
        engine.llm.reset_prefix_cache(reset_connector=True)
        with slow.passing():
            engine.settle()
            engine.store([A])
    slow.finish()
    assert engine.generate([A])[0] == [want["A"]]


def test_an_engine_without_requests_comes_to_rest_after_a_reset(
    engine: Engine, steps: Steps, slow: SlowCopies
) -> None:
    steps.finish(steps.add(A, 1))
    steps.step()
    assert slow.waiting("store")
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    steps.step(5)
    assert not scheduler.has_requests(), "vLLM makes steps for nothing"
    assert engine.manager.quarantine.empty


def test_nothing_of_before_a_reset_is_found_after_it(
    engine: Engine, steps: Steps, slow: SlowCopies, want: dict[str, list[int]]
) -> None:
    name = steps.add(A, 1)
    steps.finish(name)
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    slow.finish()
    engine.settle()
    assert engine.manager._client.total_blocks() == 0
    assert engine.generate([A]) == ([want["A"]], [0])


def test_a_reset_that_fails_is_told(
    engine: Engine, want: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(**_: object) -> None:
        raise TimeoutError("made to fail by a test")

    monkeypatch.setattr(engine.manager._client, "reset", busy)
    assert not engine.llm.reset_prefix_cache(reset_connector=True)
    monkeypatch.undo()
    assert engine.llm.reset_prefix_cache(reset_connector=True)
