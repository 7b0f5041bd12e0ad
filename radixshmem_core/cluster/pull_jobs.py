# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The pull jobs of the clients of this node: started, collected, given up.

What a job brought stays pinned by the server until the client says `PullEnd`: between the insert
and the client's own pin nothing may evict it. A client that goes away takes its jobs with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..messages import PullDone, PullEnd, PullStart, Reply
from ..rpc import ProtocolError, read_request, write_reply
from ..tasks import log_failure
from ..values import COMPONENT_MASK_FULL
from .pull_state import PullDeadline, PullOutcome

if TYPE_CHECKING:
    from .._core import QueryResult

__all__ = ["PullJobs"]

_log = logging.getLogger("radixshmem.server")

_MAX_TIMEOUT_S = 3600.0
_REPLY_S = 10.0  # a client that does not read for so long is stopped or broken

Pull = Callable[..., Awaitable[PullOutcome]]


class _Job:
    """One job of one connection."""

    def __init__(self, deadline: PullDeadline) -> None:
        self.deadline = deadline
        self.pinned: QueryResult | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.ended = False

    def end(self) -> None:
        """Let its pins go; a transfer under way ends soon, and nothing of it is pinned."""
        self.ended = True
        self.deadline.pass_now()
        if self.expiry is not None:
            self.expiry.cancel()
        if self.pinned is not None:
            self.pinned.finalize()
            self.pinned = None


class PullJobs:
    """All jobs of this server; `serve` runs one client's connection."""

    def __init__(
        self, index: _core.Index, pull: Pull, *, max_pending_jobs: int, job_ttl_s: float
    ) -> None:
        self._index = index
        self._pull = pull
        self._max_pending = max_pending_jobs
        self._ttl_s = job_ttl_s
        self._pending = 0
        self._running: dict[asyncio.Task[None], _Job] = {}
        self.refused = 0
        self.expired = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the client closes the connection. ProtocolError for what does not belong here."""
        jobs: dict[int, _Job] = {}
        try:
            while (request := await read_request(reader)) is not None:
                if isinstance(request, PullStart):
                    await self._start(request, jobs, writer)
                elif isinstance(request, PullEnd):
                    job = jobs.pop(request.job, None)
                    if job is not None:
                        job.end()
                else:
                    raise ProtocolError(f"{type(request).__name__} on a connection for pulls")
        finally:
            for job in jobs.values():
                job.end()

    async def close(self) -> None:
        """End all jobs: each completes with what is local."""
        self._max_pending = 0
        for job in self._running.values():
            job.end()
        if self._running:
            await asyncio.wait(self._running)

    def figures(self) -> dict[str, int]:
        return {"pending": self._pending, "refused": self.refused, "expired": self.expired}

    async def _start(
        self, request: PullStart, jobs: dict[int, _Job], writer: asyncio.StreamWriter
    ) -> None:
        if self._pending >= self._max_pending:
            self.refused += 1
            await write_reply(writer, _done(request, PullOutcome(request.local_hit)))
            return
        if request.job in jobs or len(request.hashes) % 8:
            raise ProtocolError(f"pull job {request.job} makes no sense")
        job = _Job(PullDeadline(min(max(request.timeout_s, 0.0), _MAX_TIMEOUT_S)))
        jobs[request.job] = job
        self._pending += 1
        task = asyncio.create_task(self._run(request, job, writer))
        self._running[task] = job
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._pending -= 1
        log_failure(task, "a pull job")

    async def _run(self, request: PullStart, job: _Job, writer: asyncio.StreamWriter) -> None:
        hashes = np.frombuffer(request.hashes, np.uint64)
        reply: Reply
        try:
            outcome = await self._pull(
                hashes, request.mask, request.local_hit, request.candidates, job.deadline
            )
            self._pin(hashes[: outcome.common_hit], request.mask, job)
            reply = _done(request, outcome)
        except Exception as error:
            _log.exception("pull job %d of a client failed", request.job)
            job.end()
            reply = _done(request, PullOutcome(request.local_hit, failures=[str(error)]))
        try:
            await asyncio.wait_for(write_reply(writer, reply), _REPLY_S)
        except asyncio.TimeoutError:  # its jobs would be all that this node may have
            _log.warning("a client does not read the ends of its pulls: it is cut off")
            writer.transport.abort()
        except OSError:
            pass

    def _pin(self, path: Any, mask: int, job: _Job) -> None:
        if job.ended or not len(path):
            return
        pinned = self._index.query(path, mask | COMPONENT_MASK_FULL, True, True, False)
        job.pinned = pinned
        job.expiry = asyncio.get_running_loop().call_later(self._ttl_s, self._expire, job)

    def _expire(self, job: _Job) -> None:
        self.expired += 1
        job.end()


def _done(request: PullStart, outcome: PullOutcome) -> PullDone:
    return PullDone(
        job=request.job,
        common_hit=outcome.common_hit,
        remote_blocks=outcome.remote_blocks,
        remote_bytes=outcome.remote_bytes,
        source_rank=outcome.source_rank,
        failures=len(outcome.failures),
        staging_shortfalls=outcome.staging_shortfalls,
        promotion_shortfalls=outcome.promotion_shortfalls,
    )
