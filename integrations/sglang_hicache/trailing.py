# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Pages of which only the last ones of a prefix are needed: sliding windows, Mamba states.

They hang on the FULL blocks of the same positions, so they enter the index after those.
"""

from __future__ import annotations

import numpy as np

from radixshmem import COMPONENT_MASK_FULL, ComponentType, InsertError, RadixClient

from .held import Held, HeldSlots, recycle
from .pages import Batch, Keys, Mask, SlotIds, refuse_unless_ok
from .pools import PagePart

__all__ = ["TrailingPages"]


class TrailingPages:
    """One pool; paths and batches are as in full.py. Calls raise RadixError, and TimeoutError, for
    a server that is not there."""

    def __init__(self, part: PagePart, window_pages: int, held: HeldSlots) -> None:
        self.part = part
        self._component = part.component
        self.window = window_pages if part.component == ComponentType.SWA else 1
        """Pages that the index finds and pulls together."""
        self._held = held

    def restorable(
        self, client: RadixClient, path: Keys, first: int, pages: int, needed: int
    ) -> Mask:
        """Which of the lengths 1 to `pages`, counted from `first`, end with `needed` pages here.

        Pages before `first` are not asked for: who asks has them.
        """
        found = client.query_aux(path[: first + pages], self._component, first)
        there = np.zeros(pages, np.bool_)
        there[: len(found.slots)] = found.slots >= 0
        positions = np.arange(1, pages + 1)
        last_gap = np.maximum.accumulate(np.where(there, 0, positions))
        enough: Mask = positions - last_gap >= np.minimum(needed, positions)
        return enough

    @property
    def mask(self) -> int:
        """For queries of FULL blocks with these pages at their end."""
        return COMPONENT_MASK_FULL | 1 << self._component

    def read(
        self, client: RadixClient, path: Keys, first: int, batch: Batch, timeout_ms: int
    ) -> Mask:
        """Copy the pages that are there, of peers too, to the host pool. Returns: which."""
        pulled = client.pull_async(path, self.mask, timeout_ms=timeout_ms).wait()
        try:
            found = client.query_aux(path, self._component, first, lock=True)
        finally:
            pulled.finalize()
        try:
            refuse_unless_ok(found.status, "read")
            there = np.flatnonzero(found.slots >= 0)
            ok = np.zeros(len(batch), np.bool_)
            if there.size and client.store is not None:
                ok[there] = batch.read(client.store, found.slots[there], there)
            return ok
        finally:
            found.finalize()

    def write(self, client: RadixClient, path: Keys, first: int, batch: Batch) -> Mask:
        """Store the pages that are not there or damaged; they wait while their path is not.

        Returns: which pages are there now, or wait.
        """
        with self._held.guard:
            found = client.query_aux(path, self._component, first, lock=True)
            try:
                self._held.follow(client)
                refuse_unless_ok(found.status, "stored")
                known = np.full(len(batch), -1, np.int32)
                known[: len(found.slots)] = found.slots
                self._mend(client, batch, known)
                there: Mask = np.greater_equal(known, 0)
                missing = np.flatnonzero(~there)
                path_there = found.common_hit == len(path)
                if not missing.size or missing.size > self._room(client, path_there):
                    return there
                new = client.allocate_slots(len(missing), self._component)
                if not new.size:  # of these pools it is all or none
                    return there
                slots = np.full(len(batch), -1, np.int32)
                slots[missing] = new
                return self._store(client, path, batch, slots, path_there)
            finally:
                found.finalize()

    def _room(self, client: RadixClient, path_there: bool) -> int:
        if not path_there:
            return self._held.room(client, self._component, self.window)
        return client.store.pool(self._component).num_slots if client.store is not None else 0

    def _mend(self, client: RadixClient, batch: Batch, known: SlotIds) -> None:
        there = np.flatnonzero(known >= 0)
        if there.size and client.store is not None:
            damaged = there[~batch.intact(client.store, known[there], there)]
            if damaged.size:
                batch.write(client.store, known[damaged], damaged)

    def _store(
        self, client: RadixClient, path: Keys, batch: Batch, slots: SlotIds, path_there: bool
    ) -> Mask:
        assert client.store is not None
        where = np.flatnonzero(slots >= 0)
        try:
            batch.write(client.store, slots[where], where)
        except BaseException:
            recycle(client, slots[where], self._component)
            raise
        if path_there:
            return np.full(len(batch), self._insert(client, path, slots))
        held = Held(self._component, batch.keys.copy(), slots)
        if (old := self._held.get(*held.name)) is not None:
            self._held.give_back(client, old)
        self._held.add(held)
        return np.ones(len(batch), np.bool_)

    def settle(self, client: RadixClient, path: Keys, first: int) -> None:
        """The blocks path[first:] are in the index now: what waited for one of them enters it."""
        with self._held.guard:
            waiting = [held for held in self._held if held.component == self._component]
            for held in waiting:
                (ends,) = np.nonzero(path[first:] == held.keys[-1])
                if ends.size:
                    self._held.take(held)
                    self._insert(client, path[: first + int(ends[0]) + 1], held.slots)

    def _insert(self, client: RadixClient, path: Keys, slots: SlotIds) -> bool:
        """Put slots on the last blocks of the path, a window at a time. Returns: whether all."""
        ok = True
        for end in range(len(path), len(path) - len(slots), -self.window):
            upto = len(slots) - (len(path) - end)
            part = slots[max(upto - self.window, 0) : upto]
            begin = end - 1 if self._component == ComponentType.MAMBA else 0
            result = client.insert(path[:end], part, begin, component=self._component)
            ok &= result.error == InsertError.OK
            if result.error in (InsertError.BUSY, InsertError.BAD_REQUEST):
                client.recycle_slots(part[part >= 0], self._component)
        return ok
