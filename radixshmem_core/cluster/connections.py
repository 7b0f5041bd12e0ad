# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""How a process comes to read its peers: a background thread makes the connections.

Lookups use what is connected and never wait for more. For each live peer of the peer table the
thread asks the own server to dial, tries shared memory by name, and takes the stream otherwise.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from .. import _core
from ..errors import RadixError, ServerNotReady
from ..messages import Dial, Dialed, Lookups
from ..rpc import ProtocolError, connect, exchange_descriptor

__all__ = ["Connections"]

_log = logging.getLogger("radixshmem.client")

_LOOK_S = 0.05
_ADOPT_TIMEOUT_MS = 1000
_DIAL_TIMEOUT_S = 3.0
_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 1.0
_MAX_CONNECTIONS = 256


@dataclass
class _Attempt:
    """What was tried for one life of a peer."""

    incarnation: int
    retry_s: float = _FIRST_RETRY_S
    due: float = 0.0
    reason: str = ""


class Connections:
    """The readers of one attachment to an index. `close` ends the thread."""

    def __init__(self, index: _core.Index, path: str, lookups: Lookups) -> None:
        """`path`: of the own server's control socket."""
        self.peers = _core.PeerIndex(index, lookups.timeout_us)
        self._path = path
        self._transport = lookups.transport
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
        """One row for each peer: rank, transport, why, reads, bytes."""
        rows = self.peers.connections()
        for row in rows:
            attempt = self._attempts.get(row["rank"])
            row["why"] = attempt.reason if attempt is not None else ""
        return rows

    # ------------------------------------------------------------ in the thread

    def look(self) -> None:
        """Connect what should be connected and is not; drop what should not be."""
        now = time.monotonic()
        connected = {row["rank"]: row for row in self.peers.connections() if not row["suspect"]}
        living = dict(self.peers.living())
        room = _MAX_CONNECTIONS - len(connected)
        for rank in set(self._attempts) - set(living):
            del self._attempts[rank]
            self.peers.drop(rank)
        for rank, incarnation in living.items():
            have = connected.get(rank)
            if have is not None and have["incarnation"] == incarnation:
                continue
            attempt = self._attempts.get(rank)
            if attempt is None or attempt.incarnation != incarnation:
                attempt = self._attempts[rank] = _Attempt(incarnation)
            if now >= attempt.due and room > 0:
                room -= self._connect(rank, attempt)

    def _connect(self, rank: int, attempt: _Attempt) -> bool:
        """Whether it succeeded."""
        try:
            attempt.reason = self._reach(rank, attempt.incarnation)
            attempt.retry_s = _FIRST_RETRY_S
            attempt.due = 0.0
            return True
        except (RadixError, TimeoutError, ValueError, OSError) as error:
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
        with connect(self._path, _DIAL_TIMEOUT_S) as control:
            reply, stream = exchange_descriptor(control, Dial(rank=rank), _DIAL_TIMEOUT_S)
        if not isinstance(reply, Dialed) or stream is None:
            raise ProtocolError(f"the radix-server answered {type(reply).__name__} to a dial")
        with stream:
            if reply.incarnation != incarnation:
                raise RadixError(f"peer {rank} is in another life than the peer table says")
            why = ""
            if self._transport in ("auto", "shm"):
                try:
                    self.peers.adopt_shm(rank, incarnation, reply.index_name, _ADOPT_TIMEOUT_MS)
                    return "its memory is on this machine"
                except ServerNotReady as error:
                    if self._transport == "shm":
                        raise
                    why = f"not shm: {error}"
            self.peers.adopt_tcp(rank, incarnation, stream.detach(), _ADOPT_TIMEOUT_MS)
            return why


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
