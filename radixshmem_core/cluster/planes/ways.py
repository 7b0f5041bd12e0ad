# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The ways in which the built-in data plane can read one peer's slots.

Shared memory, then RDMA, one way for each rail, then a stream. A way that fails rests, and readers
that came over it, or over a worse one than there is again, are made anew over the next best.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ... import _core
from ...errors import RadixError
from .rails import Rail
from .readers import Reader

__all__ = ["Told", "Ways"]

_CONNECT_TIMEOUT_MS = 2000
_RAIL_RESTS_S = 30.0
_SHM, _VERBS, _TCP = range(3)  # the order of preference
_Opened = tuple[_core.PeerSlots, socket.socket | None]


class Told(msgspec.Struct, frozen=True):
    """What a server tells of where its slots are."""

    index_name: str
    incarnation: int
    data_name: str
    hugepage_path: str
    nonce: int
    rails: tuple[int, ...] = ()  # numbers of RDMA devices on its responder


@dataclass(eq=False)
class _Way:
    name: str
    order: int
    rests_s: float  # after a failure
    make: Callable[[], _Opened]
    readers: int = 0
    failure: str = ""
    rests_until: float = 0.0

    def rank(self) -> tuple[bool, int]:
        """The best way has the lowest."""
        return time.monotonic() < self.rests_until, self.order

    def fail(self, error: str) -> None:
        self.failure = error
        self.rests_until = time.monotonic() + self.rests_s


class _Reader(Reader):
    """Made over one of the ways."""

    def __init__(
        self, ways: Ways, way: _Way, slots: _core.PeerSlots, stream: socket.socket | None
    ) -> None:
        super().__init__(slots, stream)
        self._ways = ways
        self._way = way

    def broke(self, error: str) -> None:
        self._way.fail(error)

    def superseded(self) -> bool:
        return self._ways.best() < self._way.rank()

    def close(self) -> None:
        super().close()
        self._ways.leave(self._way)


class Ways:
    """To one life of one peer; any thread may call."""

    def __init__(
        self,
        told: Told,
        protocol: str,
        rails: Sequence[Rail],
        dial: Callable[[], socket.socket],
    ) -> None:
        """`protocol`: "rdma" or "tcp" alone, or "" for whichever works. `dial` gives an index
        stream to the peer."""
        self._told = told
        self._dial = dial
        self._guard = threading.Lock()
        self._ways: list[_Way] = []
        self._note = ""
        if protocol == "":
            self._ways.append(_Way("shm", _SHM, math.inf, self._map))
        if protocol != "tcp" and rails:
            self._add_rails(rails)
        if protocol != "rdma":
            self._ways.append(_Way("tcp", _TCP, 0.0, self._stream))

    def _add_rails(self, rails: Sequence[Rail]) -> None:
        theirs = self._told.rails
        if not theirs:
            self._note = "not verbs: the peer has no transfer_dev that works"
        for i, rail in enumerate(rails if theirs else ()):
            number = theirs[i % len(theirs)]

            def connect(device: _core.VerbsDevice = rail.device, number: int = number) -> _Opened:
                return self._over_stream(
                    lambda fd: _core.PeerSlots.verbs(fd, device, number, _CONNECT_TIMEOUT_MS)
                )

            self._ways.append(_Way(f"verbs {rail.name}", _VERBS, _RAIL_RESTS_S, connect))

    def open(self) -> Reader:
        """A reader over the best way that works, the least used one of equals."""
        left = list(self._ways)
        while left:
            with self._guard:
                way = min(left, key=lambda way: (way.rank(), way.readers))
                way.readers += 1
            try:
                return _Reader(self, way, *way.make())
            except (RadixError, TimeoutError, ValueError, OSError) as error:
                way.fail(str(error) or type(error).__name__)
                self.leave(way)
                left.remove(way)
        raise RadixError(f"no way to read the peer's slots: {self._why()}")

    def best(self) -> tuple[bool, int]:
        return min(way.rank() for way in self._ways)

    def leave(self, way: _Way) -> None:
        """A reader of it is gone."""
        with self._guard:
            way.readers -= 1

    def figures(self) -> dict[str, object]:
        """Readers by transport and device, and why others are not used."""
        used = {way.name: way.readers for way in self._ways if way.readers}
        return {"readers": used, "why": self._why()}

    def _why(self) -> str:
        failed = [f"not {way.name}: {way.failure}" for way in self._ways if way.failure]
        return "; ".join(failed + [self._note] * bool(self._note))

    # ------------------------------------------------------------ making readers

    def _map(self) -> _Opened:
        told = self._told
        slots = _core.PeerSlots.shm(
            told.index_name, told.incarnation, told.data_name, told.hugepage_path, told.nonce
        )
        return slots, None

    def _stream(self) -> _Opened:
        return self._over_stream(_core.PeerSlots.tcp)

    def _over_stream(self, make: Callable[[int], _core.PeerSlots]) -> _Opened:
        """`make` takes a descriptor of a stream over; another one of it is kept."""
        with self._dial() as stream:
            kept = stream.dup()
            try:
                return make(stream.detach()), kept
            except BaseException:
                kept.close()
                raise
