# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""From one placement of the directory to the next, as members come and go.

A change takes effect once it has been quiet for `settle_ms`. The keys of the shards that move are
sent at a limited rate, and in a large cluster not by all at the same moment.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Sequence

from .. import _core
from ..config import ServerConfig
from ..node import Runner
from ..tasks import Tasks
from . import wire
from .placement import Participant, Placement
from .publication import Publication

__all__ = ["Placing"]

_WARM_S = 5.0  # the longest that a new member is not read, and that a former map is written to
_MOST_FORMER = 3
_LOOK_S = 0.5
_SPREAD_S = 0.002  # for each member: over so long the servers begin to send what moves


class Placing:
    """Of one SharedIndex. `warming`, `served` and `reads` are what peers must know of it."""

    def __init__(
        self,
        config: ServerConfig,
        run: Runner,
        me: Participant,
        readable: Callable[[], Sequence[wire.Description]],
        table: _core.PeerTable,
        publication: Publication,
        changed: Callable[[], None],
    ) -> None:
        """`run` waits elsewhere for what takes long; `me`: as a warming participant;
        `readable()`: the peers of the own digest that answer;
        `changed()`: what peers must know is not the same any more."""
        self._config = config
        self._run = run
        self._me = me
        self._readable = readable
        self._table = table
        self._publication = publication
        self._changed = changed
        self.warming = True
        self.served = 0
        self._current: Placement | None = None
        self._read_since = 0.0
        self._started = time.monotonic()
        self._draining = False
        self._closed = False
        self._settling: asyncio.TimerHandle | None = None
        self._placing: asyncio.Task[None] | None = None
        self._tasks = Tasks("placing the directory")
        self._tasks.start(self._watch())

    @property
    def reads(self) -> int:
        return 0 if self._current is None else self._current.reads

    @property
    def read_members(self) -> int:
        """How many members keep the shards that are read."""
        return 0 if self._current is None else len(self._current.settled)

    def peers_changed(self) -> None:
        """Something of a peer, or of this server, is not as before."""
        if self._closed:
            return
        self._check_warm()
        if self._current is None:
            self._place()
        else:
            self._settle()

    def withdraw(self) -> None:
        """This server keeps no shards any more."""
        self._draining = True
        self.peers_changed()

    async def close(self) -> None:
        self._closed = True
        if self._settling is not None:
            self._settling.cancel()
        await self._tasks.cancel()

    async def _watch(self) -> None:
        """Nobody tells when the time for something is over."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self._check_warm()
            if self._settling is None:
                self._place()

    def _settle(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        delay = self._config.settle_ms / 1000
        self._settling = asyncio.get_running_loop().call_later(delay, self._place)

    def _place(self) -> None:
        self._settling = None
        if self._closed:
            return
        if self._placing is not None and not self._placing.done():
            self._settle()
            return
        current, following = self._current, self._next()
        if current is not None and (current.participants, [*current.former]) == (
            following.participants,
            [*following.former],
        ):
            return
        self._placing = self._tasks.start(self._take(following))

    def _next(self) -> Placement:
        participants = self._participants()
        following = Placement(participants, self._config.directory_replicas)
        current = self._current
        if current is None:
            return following
        moved = current.reads != following.reads
        agreed = all(said.reads == following.reads for said in self._readable())
        if not agreed and (moved or time.monotonic() - self._read_since < _WARM_S):
            former = {current.reads: current.read, **current.former}
            former.pop(following.reads, None)
            following.former = dict(itertools.islice(former.items(), _MOST_FORMER))
        return following

    def _participants(self) -> tuple[Participant, ...]:
        found = []
        if not self._draining:
            me = self._me
            found.append(Participant(me.rank, me.incarnation, me.lines, self.warming))
        for said in self._readable():
            if not said.draining:
                lines = said.layout["directory_lines"]
                found.append(Participant(said.rank, said.incarnation, lines, said.warming))
        return tuple(sorted(found))

    async def _take(self, placement: Placement) -> None:
        await self._run(placement.make)
        moved = placement.reads != self.reads
        self._current = placement
        if moved:
            self._read_since = time.monotonic()
            self._table.set_shard_map(placement.read.tobytes())
            self._changed()
        living = {said.rank: said.incarnation for said in self._readable()}
        # Also of whom nothing is heard just now: it may answer again before it is left out.
        living |= {each.rank: each.incarnation for each in placement.participants}
        delay_s = random.uniform(0, len(living) * _SPREAD_S)
        await self._publication.place(placement.maps(), living, delay_s)
        if await self._publication.served(_WARM_S):
            self.served = placement.served
            self._changed()

    def _check_warm(self) -> None:
        if not self.warming:
            return
        old = time.monotonic() - self._started >= _WARM_S
        others = self._readable()
        placed = self._current is not None and len(self._current.participants) > len(others)
        mine = self._current.served if self._current else 0
        if old or (placed and all(said.served == mine for said in others)):
            self.warming = False
            self._changed()
