# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`PullJob` and `PullResult`: bringing blocks of other nodes into local slots.

A job with nothing to fetch is complete when it is made: it is the local query with the interface of
a job. Else the server brings the blocks, and the job completes in the thread of pull_channel.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ._core import QueryResult
    from .messages import PullDone

__all__ = ["OpenJobs", "PullJob", "PullResult"]

_log = logging.getLogger("radixshmem.client")
_job_ids = itertools.count(1)


class OpenJobs:
    """The jobs of a client that nobody has collected yet, and room for more."""

    __slots__ = ("_changed", "_ids", "_limit", "_waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ids: set[int] = set()
        self._waiting = 0
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def full(self) -> bool:
        return len(self._ids) >= self._limit

    def add(self, job_id: int) -> None:
        self._ids.add(job_id)

    def discard(self, job_id: int) -> None:
        self._ids.discard(job_id)
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def wait_for_room(self, timeout_s: float) -> bool:
        """False: every job is still uncollected."""
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(lambda: not self.full, timeout_s)
            finally:
                self._waiting -= 1


class PullResult:
    """What is in local slots after a pull. The arrays are built when read."""

    __slots__ = ("_local", "remote_blocks", "remote_bytes", "source_rank")

    def __init__(
        self, local: QueryResult, rank: int, remote_blocks: int = 0, remote_bytes: int = 0
    ) -> None:
        """`rank`: of the peer that the last blocks came from, or the own one."""
        self._local = local
        self.remote_blocks = remote_blocks
        self.remote_bytes = remote_bytes
        self.source_rank = rank

    @property
    def common_hit(self) -> int:
        return self._local.common_hit

    @property
    def full_slots(self) -> npt.NDArray[np.int32]:
        return self._local.full_slots

    @property
    def swa_start(self) -> int:
        return self._local.swa_start

    @property
    def swa_slots(self) -> npt.NDArray[np.int32]:
        return self._local.swa_slots

    @property
    def mamba(self) -> tuple[int, int] | None:
        return self._local.mamba

    @property
    def status(self) -> int:
        """The status of the local query: not 0 when it was refused (PINS_FULL, BAD_REQUEST)."""
        return self._local.status

    @property
    def finalize(self) -> Callable[[], None]:
        """Ends the pin. Idempotent; harmless on a miss, after reset and after close."""
        return self._local.finalize

    def __repr__(self) -> str:
        return (
            f"PullResult(common_hit={self.common_hit}, remote_blocks={self.remote_blocks}, "
            f"source_rank={self.source_rank})"
        )


class PullJob:
    """One pull. Safe to use from several threads."""

    __slots__ = (
        "_callbacks",
        "_cancelled",
        "_completed",
        "_give_up",
        "_guard",
        "_local",
        "_open_jobs",
        "_remote",
        "job_id",
        "local_hit",
        "planned_hit",
    )

    def __init__(
        self, local: QueryResult, open_jobs: OpenJobs, rank: int, planned_hit: int | None = None
    ) -> None:
        """With `planned_hit` the job is under way until `complete`."""
        job_id = self.job_id = next(_job_ids)
        self.local_hit = local.common_hit  # blocks in local slots when the job was made
        self.planned_hit = self.local_hit if planned_hit is None else planned_hit
        self._local = local
        self._remote = (rank, 0, 0)
        self._cancelled = False
        self._open_jobs = open_jobs
        self._guard: threading.Lock | None = None
        self._completed: threading.Event | None = None
        self._callbacks: list[Callable[[PullJob], object]] = []
        self._give_up: Callable[[PullJob], None] | None = None
        if planned_hit is not None:
            self._guard = threading.Lock()
            self._completed = threading.Event()
        open_jobs.add(job_id)

    def done(self) -> bool:
        return self._completed is None or self._completed.is_set()

    def wait(self, timeout_s: float | None = None) -> PullResult:
        """The result. TimeoutError: the job goes on. RuntimeError after `cancel`."""
        if self._completed is not None and not self._completed.wait(timeout_s):
            raise TimeoutError(
                f"pull job {self.job_id} is not done after {timeout_s:g} s; wait again, or cancel "
                "it"
            )
        if self._cancelled:
            raise RuntimeError(f"pull job {self.job_id} was cancelled; start another one")
        self._open_jobs.discard(self.job_id)
        return PullResult(self._local, *self._remote)

    def cancel(self) -> None:
        """Give the job up: nothing of it stays pinned. Idempotent."""
        self._cancelled = True
        self._open_jobs.discard(self.job_id)
        self._local.finalize()
        if not self.done() and self._give_up is not None:
            self._give_up(self)
            self.complete(self._local, None)

    def add_done_callback(self, callback: Callable[[PullJob], object]) -> None:
        """Call `callback(job)` when the job is done: at once if it is. Its errors are logged."""
        if self._guard is not None:
            with self._guard:
                if not self.done():
                    self._callbacks.append(callback)
                    return
        self._call(callback)

    def complete(self, local: QueryResult, done: PullDone | None) -> None:
        """Called once by the channel, with the local answer as it is now."""
        assert self._guard is not None
        assert self._completed is not None
        with self._guard:
            if self._completed.is_set():
                if local is not self._local:
                    local.finalize()
                return
            if local is not self._local:
                self._local.finalize()
                self._local = local
            if done is not None and done.source_rank >= 0:
                self._remote = (done.source_rank, done.remote_blocks, done.remote_bytes)
            self._completed.set()
            callbacks, self._callbacks = self._callbacks, []
        if self._cancelled:
            self._local.finalize()
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[PullJob], object]) -> None:
        try:
            callback(self)
        except Exception:
            _log.exception("a done callback of pull job %d failed", self.job_id)

    def __del__(self) -> None:
        self._open_jobs.discard(self.job_id)

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else "done" if self.done() else "under way"
        return f"PullJob(job_id={self.job_id}, local_hit={self.local_hit}, {state})"
