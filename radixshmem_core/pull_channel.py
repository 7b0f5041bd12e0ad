# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The connection on which a client's pull jobs run, and the thread that completes them.

Every job ends: by the server's answer, with the local hit when the connection is lost, or with it
when the server has said nothing a while after the job's own deadline (it is stopped, say).
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .errors import RadixError, ServerNotReady
from .messages import PullDone, PullEnd, Pulls, PullStart, Request
from .pull import PullJob
from .rpc import ProtocolError, checked, connect, frame, read_reply

if TYPE_CHECKING:
    from ._core import QueryResult

__all__ = ["PullChannel"]

_log = logging.getLogger("radixshmem.client")

_CONNECT_TIMEOUT_S = 1.0
_SEND_TIMEOUT = struct.pack("@ll", 0, 500_000)  # seconds, microseconds: for a stopped server
_GRACE_S = 1.0  # beyond a job's deadline, for a server that is alive

Answer = Callable[[npt.NDArray[np.uint64], int, bool], "QueryResult"]


class _Waiting:
    """A job that the server works on."""

    def __init__(self, job: PullJob, hashes: npt.NDArray[np.uint64], mask: int, lock: bool) -> None:
        self.job = job
        self.hashes = hashes
        self.mask = mask
        self.lock = lock


class PullChannel:
    """One per client. Safe to use from several threads."""

    def __init__(self, path: str, answer: Answer, ended: Callable[[PullDone], None]) -> None:
        """`answer` is the local query; `ended(done)` hears of each outcome, for counters."""
        self._path = path
        self._answer = answer
        self._ended = ended
        self._guard = threading.Lock()
        self._socket: socket.socket | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._deadlines: list[tuple[float, int, int]] = []  # when, a number, job id
        self._numbers = itertools.count()
        self._wake_read = self._wake_write = -1
        self._closed = False

    def start(
        self,
        job: PullJob,
        hashes: npt.NDArray[np.uint64],
        mask: int,
        candidates: list[tuple[int, int]],
        timeout_s: float,
        lock: bool,
    ) -> None:
        """Hand the job to the server; without a server it completes with what is local."""
        request = PullStart(
            job=job.job_id,
            hashes=hashes.tobytes(),
            mask=mask,
            local_hit=job.local_hit,
            candidates=candidates,
            timeout_s=timeout_s,
        )
        job._give_up = self._give_up
        waiting = _Waiting(job, hashes, mask, lock)
        with self._guard:
            try:
                self._connect()
            except (RadixError, OSError) as error:
                _log.info("pull job %d ends with what is local: %s", job.job_id, error)
            else:
                self._waiting[job.job_id] = waiting
                due = time.monotonic() + timeout_s + _GRACE_S
                heapq.heappush(self._deadlines, (due, next(self._numbers), job.job_id))
                if self._send(request):
                    os.write(self._wake_write, b"x")
                    return
                self._waiting.pop(job.job_id, None)
        self._complete(waiting, None)

    def close(self) -> None:
        """Complete everything with what is local."""
        with self._guard:
            self._closed = True
            connection, self._socket = self._socket, None
            if connection is not None:
                _break(connection)
            waiting, self._waiting = list(self._waiting.values()), {}
        for job in waiting:
            self._complete(job, None)

    # ------------------------------------------------------------ under the guard

    def _connect(self) -> None:
        if self._closed:
            raise ServerNotReady("the client was closed")
        if self._socket is not None:
            return
        connection = connect(self._path, _CONNECT_TIMEOUT_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        connection.sendall(frame(Pulls()))
        self._socket = connection
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        threading.Thread(
            target=self._receive,
            args=(connection, self._wake_read, self._wake_write),
            name="radixshmem pulls",
            daemon=True,
        ).start()

    def _send(self, request: Request) -> bool:
        connection = self._socket
        if connection is None:
            return False
        try:
            message = frame(request)
        except ProtocolError as error:
            _log.warning("a pull is not asked for: %s", error)
            return False
        try:
            connection.sendall(message)
        except OSError as error:  # the server went away, or is stopped: what was sent may be cut
            _log.info("the connection for pulls ends: %s", error)
            _break(connection)
            return False
        return True

    # ------------------------------------------------------------ the thread

    def _receive(self, connection: socket.socket, wake_read: int, wake_write: int) -> None:
        try:
            while self._await(connection, wake_read):
                reply = checked(read_reply(connection))
                if isinstance(reply, PullDone):
                    self._take(reply)
        except (RadixError, OSError, TimeoutError) as error:
            _log.info("the connection for pulls ended: %s", error)
        finally:
            with self._guard:
                if self._socket is connection:
                    self._socket = None
                    self._wake_read = self._wake_write = -1
                lost, self._waiting = list(self._waiting.values()), {}
                connection.close()
                os.close(wake_read)
                os.close(wake_write)
            for waiting in lost:
                self._complete(waiting, None)

    def _await(self, connection: socket.socket, wake: int) -> bool:
        """Until a reply comes, True; meanwhile jobs whose deadline has passed are completed."""
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(self._next_deadline_ms())}
            if wake in ready:
                os.read(wake, 4096)
            self._complete_late()
            if connection.fileno() in ready:
                return True

    def _next_deadline_ms(self) -> float | None:
        with self._guard:
            if not self._deadlines:
                return None
            return max(0.0, self._deadlines[0][0] - time.monotonic()) * 1000 + 1

    def _complete_late(self) -> None:
        late = []
        now = time.monotonic()
        with self._guard:
            while self._deadlines and self._deadlines[0][0] <= now:
                waiting = self._waiting.pop(heapq.heappop(self._deadlines)[2], None)
                if waiting is not None:
                    late.append(waiting)
                    self._send_end(waiting.job.job_id)
        for waiting in late:
            _log.info("pull job %d: the server is silent", waiting.job.job_id)
            self._complete(waiting, None)

    def _take(self, done: PullDone) -> None:
        with self._guard:
            waiting = self._waiting.pop(done.job, None)
        if waiting is not None:
            self._ended(done)
            self._complete(waiting, done)
        with self._guard:
            self._send_end(done.job)

    def _send_end(self, job_id: int) -> None:
        self._send(PullEnd(job=job_id))

    def _give_up(self, job: PullJob) -> None:
        with self._guard:
            self._waiting.pop(job.job_id, None)
            self._send_end(job.job_id)

    def _complete(self, waiting: _Waiting, done: PullDone | None) -> None:
        """With the local answer of now: the server's pin holds what it brought until PullEnd."""
        job = waiting.job
        if done is None or done.common_hit <= job.local_hit:
            job.complete(job._local, done)
            return
        try:
            local = self._answer(waiting.hashes, waiting.mask, waiting.lock)
        except (RadixError, ValueError, TimeoutError) as error:
            _log.info("pull job %d: %s", job.job_id, error)
            local = job._local
        if local.status or local.common_hit < job.local_hit:  # no pin was left, or it is evicted
            local.finalize()
            local = job._local
        job.complete(local, done)


def _break(connection: socket.socket) -> None:
    """The thread that reads from it hears of its end."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
