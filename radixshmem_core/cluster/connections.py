# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""How a process comes to read its peers: a background thread makes the connections.

Lookups use what is connected and never wait for more. For each live peer of the peer table the
thread tries shared memory, then RDMA, then a stream, which the own server dials, and takes the
first that works; or only the one that the server's index_transport names. Queue pairs that are idle
are closed, and so is the least used connection where there are too many; whom a lookup lacked is
connected next.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..errors import RadixError
from ..messages import Dial, Dialed, Lookups
from ..rpc import ProtocolError, connect, exchange_descriptor
from .rdma import open_device

__all__ = ["Connections"]

_log = logging.getLogger("radixshmem.client")

_LOOK_S = 0.05
_ADOPT_TIMEOUT_MS = 1000
_DIAL_TIMEOUT_S = 3.0
_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 1.0
_BETTER_S = 30.0  # how often a peer that is read over a stream is tried over RDMA
_MAX_CONNECTIONS = 256
_IDLE_S = 600.0  # a queue pair that is not used for so long is closed
_IN_USE_S = 1.0  # who was read in that time does not make room for another peer
_WHY = {
    "shm": "its memory is on this machine",
    "verbs": "RDMA to it works",
    "tcp": "a stream to it works",
}
_ERRORS = (RadixError, TimeoutError, ValueError, OSError)


@dataclass
class _Attempt:
    """What was tried for one life of a peer."""

    incarnation: int
    retry_s: float = _FIRST_RETRY_S
    due: float = 0.0
    better_due: float = 0.0
    reason: str = ""
    reads: int = 0
    used: float = 0.0  # when reads were seen to rise
    closed: bool = False  # until a lookup wants it


class Connections:
    """The readers of one attachment to an index. `close` ends the thread."""

    def __init__(self, index: _core.Index, path: str, lookups: Lookups) -> None:
        """`path`: of the own server's control socket."""
        self.peers = _core.PeerIndex(index, lookups.timeout_us)
        self._path = path
        self._lookups = lookups
        self._device: _core.VerbsDevice | None = None
        self._attempts: dict[int, _Attempt] = {}
        self._stop = threading.Event()
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=_run, args=(weakref.ref(self), self._stop), name="radixshmem peers", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._pid == os.getpid() and threading.current_thread() is not self._thread:
            self._thread.join(_DIAL_TIMEOUT_S)

    def figures(self) -> list[dict[str, object]]:
        """One row for each peer: rank, transport ("": none yet), why, reads, bytes."""
        attempts = dict(self._attempts)
        rows = self.peers.connections()
        for row in rows:
            attempt = attempts.pop(row["rank"], None)
            row["why"] = attempt.reason if attempt is not None else ""
        unread = {"transport": "", "suspect": True, "reads": 0, "bytes": 0}
        for rank, attempt in attempts.items():
            row = {"rank": rank, "incarnation": attempt.incarnation, "why": attempt.reason}
            rows.append(row | unread)
        return rows

    # ------------------------------------------------------------ in the thread

    def look(self) -> None:
        """Connect what should be connected and is not; drop what should not be."""
        now = time.monotonic()
        connected = {row["rank"]: row for row in self.peers.connections() if not row["suspect"]}
        living = dict(self.peers.living())
        wanted = set(self.peers.wanted())
        self._see_use(connected, now)
        for rank in set(self._attempts) - set(living):
            del self._attempts[rank]
            connected.pop(rank, None)
            self.peers.drop(rank)
        room = _MAX_CONNECTIONS - len(connected)
        for rank, incarnation in sorted(living.items(), key=lambda life: life[0] not in wanted):
            attempt = self._attempts.get(rank)
            if attempt is None or attempt.incarnation != incarnation:
                attempt = self._attempts[rank] = _Attempt(incarnation)
            have = connected.get(rank)
            if have is not None and have["incarnation"] == incarnation:
                if have["transport"] == "tcp" and now >= attempt.better_due:
                    self._connect_better(rank, attempt)
            elif now < attempt.due or (attempt.closed and rank not in wanted):
                continue
            elif room > 0 or (rank in wanted and self._make_room(connected, now)):
                room = max(0, room - self._connect(rank, attempt))

    def _see_use(self, connected: dict[int, dict[str, Any]], now: float) -> None:
        """Note who was read; close queue pairs that nobody needs."""
        for rank, row in list(connected.items()):
            attempt = self._attempts.get(rank)
            if attempt is None:
                continue
            if attempt.used == 0.0 or row["reads"] != attempt.reads:
                attempt.reads, attempt.used = row["reads"], now
            elif row["transport"] == "verbs" and now - attempt.used > _IDLE_S:
                self._close(rank, attempt, "it was idle")
                del connected[rank]

    def _make_room(self, connected: dict[int, dict[str, Any]], now: float) -> bool:
        """Close the connection that was not used for longest. Returns whether one was."""
        rank = min(connected, key=lambda r: self._attempts[r].used)
        attempt = self._attempts[rank]
        if now - attempt.used < _IN_USE_S:
            return False
        self._close(rank, attempt, "others are read more")
        del connected[rank]
        return True

    def _close(self, rank: int, attempt: _Attempt, reason: str) -> None:
        self.peers.drop(rank)
        attempt.closed, attempt.used = True, 0.0
        attempt.reason = f"closed, {reason}; the next lookup that lacks it brings it back"

    def _connect(self, rank: int, attempt: _Attempt) -> bool:
        """Whether it succeeded."""
        try:
            attempt.reason = self._reach(rank, attempt.incarnation)
            attempt.retry_s = _FIRST_RETRY_S
            attempt.due = attempt.used = 0.0
            attempt.closed = False
            attempt.better_due = time.monotonic() + _BETTER_S
            return True
        except _ERRORS as error:
            _log.debug("no way to read peer %d yet: %s", rank, error)
            attempt.reason = str(error)
            attempt.due = time.monotonic() + attempt.retry_s
            attempt.retry_s = min(_LAST_RETRY_S, attempt.retry_s * 2)
            return False

    def _reach(self, rank: int, incarnation: int) -> str:
        """Returns why this transport."""
        if self.peers.adopt_own(rank, incarnation, _ADOPT_TIMEOUT_MS):
            return "it is this node"
        if self.peers.take_back(rank, incarnation, _ADOPT_TIMEOUT_MS):
            return "it answers again"
        return self._reach_over(self._transports(), rank, incarnation)

    def _connect_better(self, rank: int, attempt: _Attempt) -> None:
        """What kept a peer from being read over RDMA may be over."""
        attempt.better_due = time.monotonic() + _BETTER_S
        if "verbs" in self._transports():
            with contextlib.suppress(*_ERRORS):  # the reason is known, and it is read meanwhile
                attempt.reason = self._reach_over(("verbs",), rank, attempt.incarnation)

    def _transports(self) -> tuple[str, ...]:
        wanted = self._lookups.transport
        if wanted != "auto":
            return (wanted,)
        return ("shm", "verbs", "tcp") if self._lookups.index_dev else ("shm", "tcp")

    def _reach_over(self, transports: tuple[str, ...], rank: int, incarnation: int) -> str:
        """The first that works. Returns why it is this one."""
        passed_over: list[str] = []
        index_name, stream = self._dial(rank, incarnation)
        try:
            for transport in transports:
                if stream.fileno() < 0:  # the one before has used it up
                    index_name, stream = self._dial(rank, incarnation)
                try:
                    self._adopt(transport, rank, incarnation, index_name, stream)
                except _ERRORS as error:
                    passed_over.append(f"not {transport}: {error}")
                else:
                    return "; ".join([_WHY[transport], *passed_over])
        finally:
            stream.close()
        raise RadixError("; ".join(passed_over))

    def _adopt(
        self, transport: str, rank: int, incarnation: int, index_name: str, stream: socket.socket
    ) -> None:
        if transport == "shm":
            self.peers.adopt_shm(rank, incarnation, index_name, _ADOPT_TIMEOUT_MS)
        elif transport == "tcp":
            self.peers.adopt_tcp(rank, incarnation, stream.detach(), _ADOPT_TIMEOUT_MS)
        else:
            device = self._opened_device()
            try:
                self.peers.adopt_verbs(
                    rank, incarnation, stream.detach(), device, _ADOPT_TIMEOUT_MS
                )
            except _ERRORS:
                self._device = None  # one that was reset must be opened anew
                raise

    def _opened_device(self) -> _core.VerbsDevice:
        if self._device is None:
            self._device = open_device(self._lookups.index_dev, self._lookups.gid_idx)
            _log.info("peers are read through %s", self._device.describe())
        return self._device

    def _dial(self, rank: int, incarnation: int) -> tuple[str, socket.socket]:
        """The name of the peer's index, and an index stream to the peer."""
        with connect(self._path, _DIAL_TIMEOUT_S) as control:
            reply, stream = exchange_descriptor(control, Dial(rank=rank), _DIAL_TIMEOUT_S)
        if not isinstance(reply, Dialed) or stream is None:
            raise ProtocolError(f"the radix-server answered {type(reply).__name__} to a dial")
        if reply.incarnation != incarnation:
            stream.close()
            raise RadixError(f"peer {rank} is in another life than the peer table says")
        return reply.index_name, stream


def _run(owner: Callable[[], Connections | None], stop: threading.Event) -> None:
    while not stop.wait(_LOOK_S):
        connections = owner()
        if connections is None:
            return
        try:
            connections.look()
        except RadixError as error:  # the index was closed
            _log.debug("looking for peers ends: %s", error)
            return
        del connections
