# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Two engines on one small server, in random order: requests, aborts, failures, resets and more.

After each step every cached block has the bytes of its name, and each load got what it asked for.
In the end nothing is pinned, pending or lost, and what is stored then without trouble is found.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
from e2e.vllm_offload.fake_node import FakeNode
from e2e.vllm_offload.fake_request import Request
from e2e.vllm_offload.fake_scheduler import FakeScheduler
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from radixshmem import ComponentType

_names = itertools.count()
_ENGINE = st.integers(0, 1)
_PATH = st.lists(st.integers(0, 1), min_size=1, max_size=8)  # few letters: many shared prefixes


class RandomCalls(RuleBasedStateMachine):
    node: FakeNode | None = None

    @initialize(
        model=st.sampled_from(["llama", "gemma", "mamba"]),
        blocks=st.sampled_from([8, 12, 64]),
        ranks=st.integers(1, 2),
        end_last=st.booleans(),
        lag=st.integers(0, 3),
    )
    def start(self, model: str, blocks: int, ranks: int, end_last: bool, lag: int) -> None:
        name = f"/radixtest-{os.getpid()}-calls-{next(_names)}"
        self.node = FakeNode(name, model, blocks, ranks)
        self.engines = [self.node.engine(end_last=end_last, lag=lag) for _ in range(2)]
        self.blocks = blocks
        self.count = 0
        self.paths: list[list[int]] = []

    def _some(self, engine: int, *states: str) -> list[Request]:
        return [r for r in self.engines[engine].requests.values() if r.state in states]

    @rule(engine=_ENGINE, path=_PATH, tail=st.integers(0, 3))
    def add(self, engine: int, path: list[int], tail: int) -> None:
        self.count += 1
        self.paths.append(path)
        self.engines[engine].add(Request(f"{engine}-{self.count}", path, tail))

    @rule(engine=_ENGINE, compute=st.integers(1, 4))
    def step(self, engine: int, compute: int) -> None:
        self.engines[engine].step(compute)

    @rule(engine=_ENGINE, data=st.data())
    def end(self, engine: int, data: Any) -> None:
        if running := self._some(engine, "waiting", "loading", "running"):
            self.engines[engine].abort(data.draw(st.sampled_from(running)))

    @rule(engine=_ENGINE, data=st.data())
    def preempt(self, engine: int, data: Any) -> None:
        if running := self._some(engine, "running"):
            self.engines[engine].preempt(data.draw(st.sampled_from(running)))

    @rule(engine=_ENGINE, block=st.integers(0, 1), data=st.data())
    def generate(self, engine: int, block: int, data: Any) -> None:
        if running := self._some(engine, "running"):
            request = data.draw(st.sampled_from(running))
            request.append(block)
            self.paths.append(list(request.blocks))

    @rule(engine=_ENGINE, keep=st.integers(0, 4), path=_PATH, data=st.data())
    def go_on_otherwise(self, engine: int, keep: int, path: list[int], data: Any) -> None:
        if running := self._some(engine, "running"):
            request = data.draw(st.sampled_from(running))
            if not request.jobs:
                request.replace(min(keep, len(request.blocks)), path)
                self.paths.append(list(request.blocks))

    @rule(engine=_ENGINE, what=st.sampled_from(["failing_stores", "failing_loads", "slow_jobs"]))
    def trouble(self, engine: int, what: str) -> None:
        setattr(self.engines[engine], what, 1)

    @rule(engine=_ENGINE, no_room=st.booleans())
    def fill_the_gpu(self, engine: int, no_room: bool) -> None:
        self.engines[engine].no_room = no_room

    @rule(engine=_ENGINE)
    def forget(self, engine: int) -> None:
        self.engines[engine].forget()

    @rule(engine=_ENGINE)
    def reset(self, engine: int) -> None:
        self.engines[engine].reset()

    @rule(count=st.integers(1, 8), kind=st.sampled_from(list(ComponentType)))
    def evict(self, count: int, kind: ComponentType) -> None:
        assert self.node is not None
        if self.node.groups.parts(kind):
            slots = self.node.client.allocate_slots(count, kind)
            self.node.client.recycle_slots(slots, kind)

    @precondition(lambda self: self.node is not None)
    @invariant()
    def cached_blocks_have_their_bytes(self) -> None:
        assert self.node is not None
        for path in self.paths:
            self.node.present(path)

    def teardown(self) -> None:
        if self.node is None:
            return
        try:
            for engine in self.engines:
                engine.no_room = False
                engine.failing_stores = engine.failing_loads = engine.slow_jobs = 0
                engine.drain()
            self._refill(self.engines[0])
            self.node.assert_idle()
        finally:
            self.node.close()

    def _refill(self, engine: FakeScheduler) -> None:
        assert self.node is not None
        for number, path in enumerate(self.paths[:2]):
            whole = [*path, number + 2]
            if len(whole) >= self.blocks:
                continue
            for attempt in ("store", "load"):
                engine.forget()
                hit = engine.run(engine.add(Request(f"{attempt}-{number}", whole)))
            assert self.node.present(whole) == len(whole)
            assert hit == len(whole)


def _run(examples: int, steps: int, derandomize: bool) -> None:
    run_state_machine_as_test(
        RandomCalls,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=derandomize,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_calls_leave_right_bytes_and_no_leak() -> None:
    _run(examples=40, steps=40, derandomize=True)


@pytest.mark.slow
def test_many_random_calls() -> None:
    _run(examples=1000, steps=60, derandomize=False)
