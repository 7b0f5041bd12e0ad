# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`PullJob` and `PullResult`: bringing blocks of other nodes into local slots.

On a node without peers there is nothing to fetch, so a job is complete when it is made: it is the
local query with the interface of a job.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ._core import QueryResult

__all__ = ["PullJob", "PullResult"]

_log = logging.getLogger("radixshmem.client")
_job_ids = itertools.count(1)


class PullResult:
    """What is in local slots after a pull. The arrays are built when read."""

    __slots__ = ("_local",)

    remote_blocks = 0
    remote_bytes = 0
    source_rank = 0

    def __init__(self, local: QueryResult) -> None:
        self._local = local

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
    """A pull that is complete from the start. Safe to use from several threads."""

    __slots__ = ("_cancelled", "_local", "_open_jobs", "job_id")

    def __init__(self, local: QueryResult, open_jobs: set[int]) -> None:
        """`open_jobs` holds the ids of the client's jobs that nobody has collected yet."""
        job_id = self.job_id = next(_job_ids)
        self._local = local
        self._cancelled = False
        self._open_jobs = open_jobs
        open_jobs.add(job_id)

    @property
    def local_hit(self) -> int:
        """Blocks that were in local slots when the job was made."""
        return self._local.common_hit

    @property
    def planned_hit(self) -> int:
        """Blocks that the job will have brought when it completes; never less than local_hit."""
        return self._local.common_hit

    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> PullResult:
        """The result. RuntimeError after `cancel`."""
        if self._cancelled:
            raise RuntimeError(f"pull job {self.job_id} was cancelled; start another one")
        self._open_jobs.discard(self.job_id)
        return PullResult(self._local)

    def cancel(self) -> None:
        """Give the job up: nothing of it stays pinned. Idempotent."""
        self._cancelled = True
        self._open_jobs.discard(self.job_id)
        self._local.finalize()

    def add_done_callback(self, callback: Callable[[PullJob], object]) -> None:
        """Call `callback(job)` when the job is done: here, at once. Its errors are logged."""
        try:
            callback(self)
        except Exception:
            _log.exception("a done callback of pull job %d failed", self.job_id)

    def __del__(self) -> None:
        self._open_jobs.discard(self.job_id)

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else "done"
        return f"PullJob(job_id={self.job_id}, local_hit={self.local_hit}, {state})"
