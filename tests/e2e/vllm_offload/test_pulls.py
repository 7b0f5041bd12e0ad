# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Blocks of another node are fetched while a request waits. The other node is made by the test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from e2e.vllm_offload.engines import BLOCK, Engine, prompt
from e2e.vllm_offload.stepping import Steps

from radixshmem import RadixClient, RadixError
from radixshmem.integrations.vllm_offload import pulls
from radixshmem.integrations.vllm_offload.path import word_of
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

A = prompt(1, 10 * BLOCK + 4)
HEAD = [*A[: 4 * BLOCK], 7, 8, 9]  # the first 4 blocks of A, and then something else


@dataclass
class Peer:
    """Another node that has the blocks of A, and the jobs that fetch from it."""

    client: RadixClient  # of this node: what arrives is inserted with it
    words: list[int] = field(default_factory=list)
    bytes: list[bytes] = field(default_factory=list)
    jobs: list[FakeJob] = field(default_factory=list)

    def take_over(self, words: list[int]) -> None:
        """What is cached here is there from now on, and here no more."""
        hit = self.client.query(words, lock=True)
        assert hit.common_hit == len(words)
        assert self.client.store is not None
        self.words = words
        self.bytes = [self.client.store.read_slot(int(slot)) for slot in hit.full_slots]
        hit.finalize()
        self.client.reset()

    def pull_async(self, words: Any, mask: int, **options: Any) -> FakeJob:
        assert options["block"] is False, "the scheduler must not wait"
        words = [int(word) for word in words]
        there = 0
        while there < min(len(words), len(self.words)) and words[there] == self.words[there]:
            there += 1
        local = self.client.query(words, mask, local_only=True, lock=True)
        self.jobs.append(FakeJob(self, words, local, max(there, local.common_hit)))
        return self.jobs[-1]

    def arrive(self, words: list[int], begin: int, end: int) -> None:
        assert self.client.store is not None
        slots = self.client.allocate_slots(end - begin)
        for slot, content in zip(slots, self.bytes[begin:end], strict=True):
            self.client.store.write_slot(int(slot), content)
        assert self.client.insert(words[:end], slots, begin).error == 0


class FakeJob:
    """A PullJob whose end is told by the test."""

    def __init__(self, peer: Peer, words: list[int], local: Any, planned: int) -> None:
        self.job_id = len(peer.jobs) + 1
        self.local_hit, self.planned_hit = local.common_hit, planned
        self._peer, self._words, self._local = peer, words, local
        self._result: Any = local if planned == local.common_hit else None
        self.error: Exception | None = None
        self.cancelled = False
        self.collected = 0

    def done(self) -> bool:
        return self._result is not None or self.error is not None

    def arrive(self, hit: int) -> None:
        """Complete, with the blocks up to `hit`."""
        if hit > self.local_hit:
            self._peer.arrive(self._words, self.local_hit, hit)
        self._local.finalize()
        self._result = self._peer.client.query(self._words, local_only=True, lock=True)
        assert self._result.common_hit == max(hit, self.local_hit)

    def fail(self, error: Exception) -> None:
        self._local.finalize()
        self.error = error

    def wait(self, timeout_s: float | None = None) -> Any:
        assert self.done(), "the scheduler would wait"
        self.collected += 1
        if self.error is not None:
            raise self.error
        return self._result

    def cancel(self) -> None:
        self.cancelled = True
        self._local.finalize()
        if self._result is not None:
            self._result.finalize()


@pytest.fixture(scope="module")
def want(llama: str, reference: Any) -> list[list[int]]:
    tokens: list[list[int]] = reference.tokens(llama, [A, HEAD])
    return tokens


@pytest.fixture(scope="module")
def engine(llama: str, want: Any, module_region: str) -> Iterator[Engine]:
    with RadixServer(ServerConfig(module_region, data_bytes="16M")):
        engine = Engine(llama, module_region)
        yield engine
        engine.close()


@pytest.fixture
def peer(
    engine: Engine, module_region: str, want: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Peer]:
    """The only one that has A. At the end nothing is left of the fetches."""
    engine.store([A])
    client = engine.manager._client
    with RadixClient(module_region) as other:
        other.wait_ready(10)
        peer = Peer(other)
        live = engine.hashes(A)
        assert len(live) == 10
        peer.take_over([word_of(block_hash) for block_hash in live])
        monkeypatch.setattr(client, "pull_async", peer.pull_async)
        yield peer
        engine.assert_idle()
        monkeypatch.undo()
        assert all(job.done() or job.cancelled for job in peer.jobs)
        assert engine.llm.reset_prefix_cache(reset_connector=True)
        assert client.mempool_used() == 0


@pytest.fixture
def steps(engine: Engine) -> Steps:
    return Steps(engine)


@pytest.fixture
def pulling(steps: Steps, peer: Peer) -> tuple[str, FakeJob]:
    """A request that waits for what the peer has, and its job."""
    name = steps.add(A)
    steps.until(lambda: peer.jobs, "a fetch")
    steps.step(5)
    assert len(peer.jobs) == 1, "it is asked for in each step, and fetched once"
    assert peer.jobs[0].planned_hit == 10
    return name, peer.jobs[0]


def test_fetched_blocks_are_used(
    steps: Steps, pulling: tuple[str, FakeJob], want: list[list[int]]
) -> None:
    name, job = pulling
    job.arrive(10)
    assert steps.finish(name) == (want[0], 10 * BLOCK)
    assert job.collected == 1


def test_what_arrived_of_a_fetch_is_used(
    engine: Engine, steps: Steps, pulling: tuple[str, FakeJob], want: list[list[int]]
) -> None:
    before = engine.manager.figures.pulled_blocks
    name, job = pulling
    job.arrive(3)
    assert steps.finish(name) == (want[0], 3 * BLOCK)
    assert engine.manager.figures.pulled_blocks - before == 3


def test_what_has_arrived_is_used_before_the_end_is_told(
    engine: Engine, steps: Steps, pulling: tuple[str, FakeJob], peer: Peer, want: list[list[int]]
) -> None:
    before = engine.manager.figures.pulled_blocks
    name, job = pulling
    peer.arrive(peer.words, 0, 10)
    assert steps.finish(name) == (want[0], 10 * BLOCK)
    assert job.cancelled
    assert engine.manager.figures.pulled_blocks - before == 10


def test_a_fetch_that_ends_with_what_is_local_has_failed(
    engine: Engine, steps: Steps, pulling: tuple[str, FakeJob], want: list[list[int]]
) -> None:
    """As a PullJob ends when no peer could give anything: it raises nothing."""
    figures = engine.manager.figures
    before = figures.failed_pulls, figures.pulled_blocks
    name, job = pulling
    job.arrive(0)
    assert steps.finish(name) == (want[0], 0)
    assert (figures.failed_pulls, figures.pulled_blocks) == (before[0] + 1, before[1])


@pytest.mark.parametrize(
    "error", [RadixError("the peer is gone"), RuntimeError("cancelled"), TimeoutError("too late")]
)
def test_a_failed_fetch_leaves_what_is_local(
    engine: Engine,
    steps: Steps,
    pulling: tuple[str, FakeJob],
    want: list[list[int]],
    error: Exception,
) -> None:
    before = engine.manager.figures.failed_pulls
    name, job = pulling
    job.fail(error)
    assert steps.finish(name) == (want[0], 0)
    assert engine.manager.figures.failed_pulls - before == 1


def test_a_failed_fetch_does_not_concern_others(
    engine: Engine, steps: Steps, pulling: tuple[str, FakeJob], want: list[list[int]]
) -> None:
    name, job = pulling
    other = steps.add(prompt(9, 3 * BLOCK + 1), 2)
    steps.step(2)  # it is being stored
    job.fail(RadixError("the peer is gone"))
    assert steps.finish(name) == (want[0], 0)
    steps.finish(other)
    engine.settle()
    assert engine.manager._client.total_blocks() == 13
    assert engine.manager.figures.lost_servers == 0


def test_a_fetch_that_does_not_end_is_given_up(
    steps: Steps,
    pulling: tuple[str, FakeJob],
    want: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, job = pulling
    now = pulls.time.monotonic()
    monkeypatch.setattr(pulls.time, "monotonic", lambda: now + 6.5)  # 5 s are its deadline
    assert steps.finish(name) == (want[0], 0)
    assert job.cancelled


def test_a_local_head_goes_on_with_what_is_fetched(
    engine: Engine, steps: Steps, peer: Peer, want: list[list[int]]
) -> None:
    peer.arrive(peer.words, 0, 4)
    name = steps.add(A)
    steps.until(lambda: peer.jobs, "a fetch")
    steps.step(3)
    assert (peer.jobs[0].local_hit, peer.jobs[0].planned_hit) == (4, 10)
    meanwhile = steps.add(HEAD)
    assert steps.finish(meanwhile) == (want[1], 4 * BLOCK), "the head is there for others"
    peer.jobs[0].arrive(10)
    assert steps.finish(name) == (want[0], 10 * BLOCK)


def test_a_local_head_is_used_when_the_rest_does_not_come(
    steps: Steps, peer: Peer, want: list[list[int]]
) -> None:
    peer.arrive(peer.words, 0, 4)
    name = steps.add(A)
    steps.until(lambda: peer.jobs, "a fetch")
    peer.jobs[0].fail(RadixError("the peer is gone"))
    assert steps.finish(name) == (want[0], 4 * BLOCK)


@pytest.mark.parametrize("late", [False, True])
def test_an_aborted_request_gives_its_fetch_up(
    steps: Steps, pulling: tuple[str, FakeJob], late: bool
) -> None:
    name, job = pulling
    if late:  # it has ended, and nobody has looked
        job.arrive(10)
    steps.abort(name)
    steps.step(3)
    assert job.cancelled


def test_a_reset_gives_fetches_up(
    engine: Engine, steps: Steps, pulling: tuple[str, FakeJob], want: list[list[int]]
) -> None:
    name, job = pulling
    job.arrive(10)  # blocks of before the reset
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    assert job.cancelled
    peer = job._peer
    peer.words = []  # the other node was reset too
    assert steps.finish(name) == (want[0], 0)
    assert len(peer.jobs) == 2, "it may ask again what others have since then"
