# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""All transfers of one direction between a GPU and the slots: one stream, in order.

    store: compute event -> GPU copies into slots                        (registered slots)
           compute event -> GPU copies into a buffer -> CPU copies into slots        (others)
    load:  compute event -> GPU copies out of slots                      (registered slots)
           CPU copies slots into a buffer -> GPU copies out of it                    (others)

The GPU begins a transfer after all that the engine had given to it by then: a store reads what the
engine has computed, a load overwrites nothing that is still in use. A buffer is used again when the
event after its last use has come, so two of them are enough to keep both sides busy.

A transfer that is not over at its deadline has failed. What the GPU has not been told yet it is not
told any more; what it has been told cannot be taken back, so the transfer is kept, with its slots
registered and mapped, until that has ended. The blocks of such a load may be given to another
request at once, so the engine's stream waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from radixshmem import RadixError

from .copies import Outcome, Part, Transfer
from .device import Addresses, Device, Event

__all__ = ["Fragments", "Lane"]

_BUFFERS = 2


@dataclass(frozen=True, slots=True)
class Fragments:
    """Copies for the GPU: between addresses in the KV cache and in host memory."""

    cache: Addresses
    host: Addresses
    sizes: Addresses

    @classmethod
    def of(cls, part: Part, places: Addresses) -> Fragments:
        """Those of a part, the bytes of each slot lying together at its place."""
        within = np.cumsum(part.sizes, dtype=np.uint64) - part.sizes
        host = (places[:, None] + within).reshape(-1)
        return cls(part.addresses, host, np.tile(part.sizes, len(places)))


@dataclass(slots=True)
class _Run:
    """A transfer that has begun."""

    transfer: Transfer
    begin: float
    bytes: int
    error: str | None = None
    direct: Event | None = None  # after its copies that need no buffer
    hold: object = None  # keeps their slots registered and mapped
    pieces: int = 0  # that wait for a buffer, or have one


@dataclass(slots=True)
class _Buffer:
    address: int
    memory: object = field(repr=False)

    def places(self, part: Part) -> Addresses:
        rows = np.arange(len(part.slots), dtype=np.uint64)
        return np.uint64(self.address) + rows * np.uint64(part.slot_bytes)


class Lane:
    """`is_store` says which direction. `buffer_bytes` holds the bytes of one slot, or more."""

    def __init__(
        self,
        device: Device,
        is_store: bool,
        buffer_bytes: int,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._device = device
        self._stream = device.stream()
        self._is_store = is_store
        self._buffer_bytes = buffer_bytes
        self._timeout_s = timeout_s
        self._clock = clock
        self._running: dict[int, _Run] = {}
        self._late: list[_Run] = []
        self._queue: deque[tuple[_Run, Part]] = deque()  # pieces without a buffer yet
        self._busy: deque[tuple[_Run, Part, _Buffer, Event]] = deque()  # in order of the stream
        self._free: list[_Buffer] = []
        self._made = 0  # buffers

    def start(
        self, transfer: Transfer, direct: list[Fragments], hold: object, bounced: list[Part]
    ) -> None:
        """Copy `direct`, whose memory `hold` keeps, by the GPU alone, and `bounced` by buffers."""
        size = sum(int(f.sizes.sum()) for f in direct)
        size += sum(part.slot_bytes * len(part.slots) for part in bounced)
        run = _Run(transfer, self._clock(), size, hold=hold)
        self._running[transfer.job_id] = run
        try:
            self._stream.wait(self._device.compute_event())
            if direct:
                run.direct = self._copy(run, direct)
        except RuntimeError as error:
            run.error = str(error)
        for part in bounced:
            rows = max(1, self._buffer_bytes // part.slot_bytes)
            for begin in range(0, len(part.slots), rows):
                self._queue.append((run, part[begin : begin + rows]))
                run.pieces += 1
        self._advance()

    def fail(self, transfer: Transfer, error: str) -> None:
        """Take note of a transfer that could not begin."""
        self._running[transfer.job_id] = _Run(transfer, self._clock(), 0, error)

    def collect(self) -> list[Outcome]:
        """Go on, and say which transfers are over. Does not wait."""
        self._advance()
        outcomes = []
        now = self._clock()
        for run in list(self._running.values()):
            if self._has_ended(run):
                outcomes.append(self._outcome(run, now, ended=True))
            elif now >= run.begin + self._timeout_s:
                self._give_up(run)
                outcomes.append(self._outcome(run, now, ended=self._has_ended(run)))
        return outcomes

    def runs_any(self, job_ids: set[int] | None) -> bool:
        """Whether one of them, or any at all for None, is not over."""
        return bool(self._running) if job_ids is None else not job_ids.isdisjoint(self._running)

    def take_ended(self) -> list[Transfer]:
        """Those that were given up, and have ended since."""
        self._advance()
        ended = [run for run in self._late if self._has_ended(run)]
        self._late = [run for run in self._late if run not in ended]
        return [run.transfer for run in ended]

    @property
    def late(self) -> bool:
        """Whether some that were given up have not ended."""
        return bool(self._late)

    # ------------------------------------------------------------ the GPU

    def _copy(self, run: _Run, fragments: list[Fragments]) -> Event:
        """Tell the GPU to copy; the event after it. What it refuses is the run's error."""
        cache = np.concatenate([f.cache for f in fragments])
        host = np.concatenate([f.host for f in fragments])
        sizes = np.concatenate([f.sizes for f in fragments])
        sources, targets = (cache, host) if self._is_store else (host, cache)
        try:
            self._stream.copy(sources, targets, sizes)
        except RuntimeError as error:  # it may have begun some of them
            run.error = str(error)
        return self._stream.record()

    def _came(self, run: _Run, event: Event) -> bool:
        try:
            return event.query()
        except RuntimeError as error:  # the GPU is broken: it copies no more
            run.error = str(error)
            return True

    def _has_ended(self, run: _Run) -> bool:
        return run.pieces == 0 and (run.direct is None or self._came(run, run.direct))

    # ------------------------------------------------------------ buffers

    def _advance(self) -> None:
        """Go on with the pieces as far as that is possible without waiting."""
        while self._busy and self._came(self._busy[0][0], self._busy[0][3]):
            run, piece, buffer, _ = self._busy.popleft()
            if self._is_store:
                self._by_cpu(run, piece, buffer)
            self._free.append(buffer)
            run.pieces -= 1
        while self._queue and (buffer_or_none := self._take_buffer()) is not None:
            self._launch(*self._queue.popleft(), buffer_or_none)

    def _take_buffer(self) -> _Buffer | None:
        if not self._free and self._made < _BUFFERS:
            largest = max(part.slot_bytes for _, part in self._queue)
            try:
                memory = self._device.pinned(max(self._buffer_bytes, largest))
            except RuntimeError as error:
                if self._made == 0:  # else the one that there is will do
                    self._drop_queue(f"no pinned buffer: {error}")
                return None
            self._made += 1
            return _Buffer(*memory)
        return self._free.pop() if self._free else None

    def _drop_queue(self, error: str) -> None:
        for run, _ in self._queue:
            run.error = error
            run.pieces -= 1
        self._queue.clear()

    def _launch(self, run: _Run, piece: Part, buffer: _Buffer) -> None:
        if not self._is_store:
            self._by_cpu(run, piece, buffer)
        if run.error is None:
            try:
                event = self._copy(run, [Fragments.of(piece, buffer.places(piece))])
                self._busy.append((run, piece, buffer, event))
                return
            except RuntimeError as error:
                run.error = str(error)
        self._free.append(buffer)
        run.pieces -= 1

    def _by_cpu(self, run: _Run, piece: Part, buffer: _Buffer) -> None:
        """Between buffer and slots. Not for a run that has failed: its slots may be of another."""
        if run.error is not None:
            return
        sizes = np.array([piece.slot_bytes], np.uint64)
        try:
            run.transfer.copy(
                Part(piece.kind, piece.slots, buffer.places(piece), sizes, piece.offset)
            )
        except (RadixError, IndexError, ValueError) as error:
            run.error = str(error)

    # ------------------------------------------------------------ the end

    def _give_up(self, run: _Run) -> None:
        run.error = f"not over after {self._timeout_s:g} s"
        kept = [(other, piece) for other, piece in self._queue if other is not run]
        run.pieces -= len(self._queue) - len(kept)
        self._queue = deque(kept)
        if not self._is_store:
            self._device.compute_waits(self._stream.record())

    def _outcome(self, run: _Run, now: float, ended: bool) -> Outcome:
        del self._running[run.transfer.job_id]
        if not ended:
            self._late.append(run)
        copied = run.bytes if run.error is None else 0
        return Outcome(run.transfer, run.error, copied, now - run.begin, ended)
