# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Processes that query, or write, when they are told to."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt
import workload

import radixshmem

__all__ = ["Activity", "Helper", "helper"]

_ANSWER_TIMEOUT_S = 60.0
_TAIL_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class Activity:
    """What one spell of work was like."""

    operations: int
    elapsed_s: float
    latencies_s: npt.NDArray[np.float64]

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.elapsed_s


class Helper:
    """A child process; it works from `begin` on, for the time it was told."""

    def __init__(self, pipe: Connection, process: multiprocessing.context.SpawnProcess) -> None:
        self._pipe = pipe
        self.process = process

    def begin(self, seconds: float) -> None:
        self._pipe.send(seconds)

    def finish(self) -> Activity:
        """What it did since `begin`."""
        if not self._pipe.poll(_ANSWER_TIMEOUT_S):
            raise TimeoutError(f"helper {self.process.pid} did not answer in {_ANSWER_TIMEOUT_S} s")
        answer = self._pipe.recv()
        assert isinstance(answer, Activity)
        return answer

    def work(self, seconds: float) -> Activity:
        self.begin(seconds)
        return self.finish()


@contextlib.contextmanager
def helper(kind: str, server_name: str, seed: int) -> Iterator[Helper]:
    """A "reader", whose paths stay pinned, or a "writer", which evicts and inserts flat out."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(kind, server_name, seed, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_ANSWER_TIMEOUT_S) or ours.recv() != "ready":
            raise RuntimeError(f"the {kind} process did not come up; its own message is above")
        yield Helper(ours, process)
    finally:
        ours.close()
        process.kill()
        process.join()


def _run(kind: str, server_name: str, seed: int, pipe: Connection) -> None:
    with radixshmem.RadixClient(server_name) as client, contextlib.suppress(EOFError):
        client.wait_ready(_ANSWER_TIMEOUT_S)
        body = _Reader(client, seed) if kind == "reader" else _Writer(client, seed)
        pipe.send("ready")
        while True:
            pipe.send(_spell(body, pipe.recv()))


def _spell(body: _Reader | _Writer, seconds: float) -> Activity:
    latencies: list[float] = []
    clock = time.perf_counter
    begin = now = clock()
    while now - begin < seconds:
        body.step()
        before, now = now, clock()
        latencies.append(now - before)
    return Activity(len(latencies), now - begin, np.asarray(latencies))


class _Reader:
    """Queries random conversations, pins and lets go; its own pins keep them all in the tree."""

    def __init__(self, client: radixshmem.RadixClient, seed: int) -> None:
        load = workload.make()
        random = np.random.default_rng(seed)
        chosen = random.choice(load.short, 400, replace=False).tolist()
        self._client = client
        self._paths = [load.path(conversation) for conversation in chosen]
        self._kept = [client.query(path, lock=True) for path in self._paths]
        missing = sum(kept.common_hit != 512 for kept in self._kept)
        if missing:
            raise RuntimeError(f"{missing} conversations are not in the tree")
        self._order = random.integers(0, len(self._paths), 4096).tolist()
        self._at = 0

    def step(self) -> None:
        self._at = (self._at + 1) & 4095
        result = self._client.query(self._paths[self._order[self._at]], lock=True)
        result.finalize()
        if result.common_hit != 512:
            raise RuntimeError(f"a pinned path gave a hit of {result.common_hit} of 512 blocks")


class _Writer:
    """Stores new runs of blocks at capacity; each evicts as many others."""

    def __init__(self, client: radixshmem.RadixClient, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._client = client
        self._paths = random.integers(1, 2**63 - 1, (4096, _TAIL_BLOCKS), dtype=np.uint64)
        self._at = 0

    def step(self) -> None:
        self._at = (self._at + 1) & 4095
        path = self._paths[self._at]
        if self._at == 0:
            self._paths += np.uint64(1)  # new blocks again
        self._client.insert(path, self._client.allocate_slots(_TAIL_BLOCKS))
