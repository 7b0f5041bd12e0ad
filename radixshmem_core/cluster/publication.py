# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Telling the shard holders what this server has: the change ring, in batches.

Complete chunks go out within `_TICK_S`, tails once they are idle for a second, everything at once
on `flush`. A batch that a peer did not acknowledge is sent again for as long as that peer keeps
shards; a peer that came back in another life gets all that it keeps. Once in a while everything is
sent again, slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from .. import _core
from ..errors import RadixError
from ..node import Runner
from ..tasks import Tasks
from . import wire
from .dialer import PeerUnreachable
from .peers import Peer

__all__ = ["Publication"]

_log = logging.getLogger("radixshmem.server")
_T = TypeVar("_T")

_TICK_S = 0.05
_SEND_TIMEOUT_S = 5.0
_RETRY_S = 0.1
_MAX_QUEUED = 256  # batches for one peer; then its shards are sent anew later
_HEAL_S = 60.0
_HEAL_KEYS_PER_S = 10_000
_MOVED_KEYS_PER_S = 50_000  # to new holders, beside all else


class Publication:
    """One per life of an index. Everything runs in the event loop but the core's calls."""

    def __init__(
        self,
        index: _core.Index,
        rank: int,
        digest: int,
        chunk_blocks: int,
        run_as_owner: Runner,
        peer_of: Callable[[int], Peer | None],
    ) -> None:
        self._publisher = _core.Publisher(index, rank, digest, chunk_blocks)
        self._republishing = False
        self._figures = self._publisher.figures()
        self.directory = _core.Directory(index)
        self.directory.clear(digest)
        self._incarnation = index.incarnation
        self._digest = digest
        self._run_as_owner = run_as_owner
        self._peer_of = peer_of
        self._rank = rank
        self._living: dict[int, int] = {}
        self._placements = 0
        self._outboxes: dict[int, _Outbox] = {}
        self._collecting = asyncio.Lock()
        self._placed = asyncio.Event()
        self._tasks = Tasks("publishing")
        self._wake = asyncio.Event()
        self._closed = False
        self._tasks.start(self._run())

    async def place(self, maps: list[bytes], living: dict[int, int], delay_s: float) -> None:
        """Take new shard maps; begin to send what others now keep after `delay_s`. `living`: the
        incarnation by rank of who may be written to."""
        async with self._collecting:
            before = self._living
            for number in [r for r in self._outboxes if r not in living]:
                self._outboxes.pop(number).close()
            for number in living:
                if number != self._rank and number not in self._outboxes:
                    self._outboxes[number] = _Outbox(
                        partial(self._peer_of, number), self._message, self._tasks
                    )
            delay_ms = round(delay_s * 1000)
            await self._call(self._publisher.set_maps, maps, _MOVED_KEYS_PER_S, delay_ms)
            for number in living:
                if before.get(number, living[number]) != living[number]:
                    await self._call(self._publisher.resend, number, _MOVED_KEYS_PER_S)
            self._living = living
            self._placements += 1
        self._placed.set()
        self._wake.set()

    async def _run(self) -> None:
        healed = time.monotonic()
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _TICK_S)
            self._wake.clear()
            try:
                if time.monotonic() - healed > _HEAL_S:
                    healed = time.monotonic()
                    await self._heal()
                await self._collect(everything=False)
            except Exception as error:  # whatever it is: what is not sent now may be sent later
                unexpected = not isinstance(error, RadixError)
                _log.error("publishing failed, going on: %s", error, exc_info=unexpected)
                await asyncio.sleep(1.0)

    async def served(self, timeout_s: float) -> bool:
        """Whether all that moves has come to its new holders in time."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._served(), timeout_s)
            return True
        return False

    async def _served(self) -> None:
        while self._republishing:
            await asyncio.sleep(_TICK_S)
        async with self._collecting:  # what was read is in the outboxes
            boxes = list(self._outboxes.values())
        await asyncio.gather(*(box.drained() for box in boxes))

    async def flush(self, timeout_s: float) -> bool:
        """Send all; True once everybody has acknowledged, False at the deadline. It goes on then:
        what was collected must be sent."""
        if self._closed:
            return False
        task = self._tasks.start(self._flush())
        await asyncio.wait((task,), timeout=max(0.0, timeout_s))
        return task.done() and not task.cancelled() and task.exception() is None

    async def _flush(self) -> None:
        await self._placed.wait()
        seen = 0
        while seen != self._placements:  # what went to former keepers is sent again
            seen = self._placements
            await self._collect(everything=True)
            boxes = list(self._outboxes.values())
            await asyncio.gather(*(box.drained() for box in boxes))

    async def _heal(self) -> None:
        """Begin to send everything once more, slowly: what was lost comes back, what keepers hold
        without a reason goes."""
        async with self._collecting:
            await self._call(self._publisher.republish_all, _HEAL_KEYS_PER_S)

    async def stop(self) -> None:
        """Withdraw everything this server has published."""
        async with self._collecting:
            await self._call(self._publisher.stop)

    def figures(self) -> dict[str, int]:
        """What was published here and what the own directory holds, for `status`."""
        dropped = sum(box.dropped for box in self._outboxes.values())
        waiting = sum(len(box) for box in self._outboxes.values())
        return {
            **self._figures,
            **self.directory.figures(),
            "batches_waiting": waiting,
            "batches_dropped": dropped,
        }

    async def close(self) -> None:
        self._closed = True
        self._outboxes = {}
        await self._tasks.cancel()

    async def _collect(self, everything: bool) -> None:
        if not self._placements:
            return
        async with self._collecting:
            for number, box in self._outboxes.items():
                if box.lost and not len(box):
                    box.lost = False
                    await self._call(self._publisher.resend, number, _MOVED_KEYS_PER_S)
            while True:
                batches, more = await self._call(self._publisher.collect, everything)
                self._send(batches)
                if not more:
                    return

    async def _call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """A call of the publisher, and how it stands afterwards. Requires: _collecting."""

        def call() -> tuple[_T, bool, dict[str, int]]:
            result = function(*arguments)
            return result, self._publisher.republishing(), self._publisher.figures()

        result, self._republishing, self._figures = await self._run_as_owner(call)
        return result

    def _send(self, batches: list[tuple[int, bytes]]) -> None:
        for rank, batch in batches:
            if rank == self._rank:
                self.directory.apply(batch, rank, self._incarnation)
            elif (box := self._outboxes.get(rank)) is not None:
                box.put(batch)

    def _message(self, batch: bytes) -> wire.Publish:
        return wire.Publish(
            rank=self._rank, incarnation=self._incarnation, digest=self._digest, batch=batch
        )


class _Outbox:
    """Batches for one rank, sent in order, one at a time."""

    def __init__(
        self,
        peer_of: Callable[[], Peer | None],
        message: Callable[[bytes], wire.Publish],
        tasks: Tasks,
    ) -> None:
        self._peer_of = peer_of
        self._message = message
        self._queue: deque[bytes] = deque()
        self._some = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self.dropped = 0
        self.lost = False  # the peer needs all of its keys again
        self._refused = ""
        self._sending = False
        self._closed = False
        self._task = tasks.start(self._run())

    def __len__(self) -> int:
        return len(self._queue) + self._sending

    def put(self, batch: bytes) -> None:
        if len(self._queue) >= _MAX_QUEUED:
            self._queue.popleft()
            self.dropped += 1
            self.lost = True
        self._queue.append(batch)
        self._empty.clear()
        self._some.set()

    async def drained(self) -> None:
        await self._empty.wait()

    def close(self) -> None:
        self._closed = True  # a cancellation may be swallowed
        self._task.cancel()
        self._empty.set()

    async def _run(self) -> None:
        while not self._closed:
            await self._some.wait()
            self._some.clear()
            while self._queue:
                batch = self._queue.popleft()
                self._sending = True
                while not self._closed and not await self._deliver(batch):
                    await asyncio.sleep(_RETRY_S)
                self._sending = False
            self._empty.set()

    async def _deliver(self, batch: bytes) -> bool:
        peer = self._peer_of()
        if peer is None or not peer.reachable:
            return False
        try:
            await peer.link.ask(self._message(batch), _SEND_TIMEOUT_S)
        except PeerUnreachable:
            return False
        except RadixError as error:  # it does not know yet what this server is now
            if str(error) != self._refused:
                self._refused = str(error)
                _log.info("peer %s refuses a batch, which is sent again: %s", peer.name, error)
            return False
        return True
