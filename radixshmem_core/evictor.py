# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Eviction ahead of demand, so that an allocation seldom has to evict by itself.

It works only on demand: as long as no allocation had to evict, nothing is evicted, and a pool may
stay filled to its last slot.
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
    """Keeps `ratio` of each pool free once allocations have to evict."""

    def __init__(self, index: _core.Index, run: Runner, ratio: float) -> None:
        self._index = index
        self._run = run
        self._goals = {
            kind: int(ratio * index.slots_total(kind))
            for kind in ComponentType
            if index.slots_total(kind) > 0
        }
        self._seen = index.stats()["demand_evictions"]

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
        """Evict up to the goals if there was demand since the last look. Returns how many."""
        demand = self._index.stats()["demand_evictions"]
        if demand == self._seen:
            return 0
        self._seen = demand
        evicted = 0
        for kind, goal in self._goals.items():
            while (missing := goal - self._index.slots_free(kind)) > 0:
                got = self._index.evict(min(missing, _BATCH), kind)
                evicted += got
                if got == 0:
                    break
        return evicted
