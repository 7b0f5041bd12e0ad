# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Eviction ahead of demand, so that an allocation seldom has to evict by itself.

It works only on demand: as long as no allocation from a pool had to evict, nothing of it is
evicted, and it may stay filled to its last slot.
"""

from __future__ import annotations

import asyncio
import logging

from . import _core
from .node import Runner
from .values import ComponentType

__all__ = ["Evictor"]

_log = logging.getLogger("radixshmem.server")

LOOK_INTERVAL_S = 0.05
_PAUSE_S = 1.0  # after an error
_BATCH = 512  # blocks per call, so that the lock is never held for long


class Evictor:
    """Keeps `ratio` of a pool free once allocations from it have to evict."""

    def __init__(self, index: _core.Index, run: Runner, ratio: float) -> None:
        self._index = index
        self._run = run
        self._goals = {
            kind: int(ratio * index.slots_total(kind))
            for kind in ComponentType
            if index.slots_total(kind) > 0
        }
        self._seen = self._demand()

    def _demand(self) -> dict[ComponentType, int]:
        """How many allocations of each pool had to evict."""
        stats = self._index.stats()
        return {kind: stats[f"{kind.name.lower()}_demand_evictions"] for kind in self._goals}

    async def run(self) -> None:
        """Look every LOOK_INTERVAL_S, until cancelled."""
        while any(self._goals.values()):
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                await self._run(self.look)
            except TimeoutError:
                _log.debug("the index lock is busy; evicting later")
            except Exception:
                _log.exception("the evictor met an error; it goes on in %g s", _PAUSE_S)
                await asyncio.sleep(_PAUSE_S)

    def look(self) -> int:
        """Evict up to the goals of pools in demand since the last look. Returns how many."""
        before, self._seen = self._seen, self._demand()
        evicted = 0
        for kind, goal in self._goals.items():
            if self._seen[kind] == before[kind]:
                continue
            while (missing := goal - self._index.slots_free(kind)) > 0:
                got = self._index.evict(min(missing, _BATCH), kind)
                evicted += got
                if got == 0:
                    break
        return evicted
