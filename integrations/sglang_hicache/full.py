# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Pages that every page of a prefix needs: the KV, and the sidecars in the same slots.

A path is the folded keys from the begin of the sequence on; a batch is its end, from `first` on.
"""

from __future__ import annotations

import numpy as np

from radixshmem import ComponentType, InsertError, QueryResult, RadixClient, RadixError

from .held import Held, HeldSlots, recycle
from .pages import Batch, Keys, Mask, SlotIds, Where, refuse_unless_ok
from .pools import PagePart

__all__ = ["FullPages"]

_FULL = ComponentType.FULL
_ORPHANS = (
    "pages were not stored, since what comes before them is not in the index: the radix-server was "
    "restarted or holds too little; SGLang stores it again when it has computed it again, as after "
    "POST /flush_cache"
)


class FullPages:
    """Calls raise RadixError, and TimeoutError, for a server that is not there."""

    def __init__(self, parts: tuple[PagePart, ...], held: HeldSlots) -> None:
        self._sidecars = {part.name for part in parts[:-1]}
        self._held = held

    def read(
        self, client: RadixClient, path: Keys, first: int, batch: Batch, timeout_ms: int
    ) -> Mask:
        """Copy the pages that are there, of peers too, to the host pool. Returns: which."""
        found = client.pull_async(path, timeout_ms=timeout_ms).wait()
        try:
            refuse_unless_ok(found.status, "read")
            there = max(found.common_hit - first, 0)
            ok = np.zeros(len(batch), np.bool_)
            if there and client.store is not None:
                ok[:there] = batch.read(client.store, found.full_slots[first:], np.arange(there))
            return ok
        finally:
            found.finalize()

    def write(self, client: RadixClient, path: Keys, first: int, batch: Batch) -> Mask:
        """Store the pages that are not there, and those that are damaged, as far as there is room.

        Of a sidecar, the slots wait for the KV; the KV completes them and puts them in the index.
        Returns: which pages are there now, or wait. RadixError also where the pages before them
        are not there, or no pin is left.
        """
        with self._held.guard:
            found = client.query(path, local_only=True, lock=True)
            try:
                self._held.follow(client)
                refuse_unless_ok(found.status, "stored")
                if found.common_hit < first:
                    raise RadixError(_ORPHANS)
                return self._write(client, path, found, first, batch)
            finally:
                found.finalize()

    def _write(
        self, client: RadixClient, path: Keys, found: QueryResult, first: int, batch: Batch
    ) -> Mask:
        store = client.store
        ok = np.zeros(len(batch), np.bool_)
        there = found.common_hit - first
        if store is None:
            return ok
        if there:
            known = found.full_slots[first:]
            ok[:there] = batch.intact(store, known, np.arange(there))
            damaged = np.flatnonzero(~ok[:there])
            self._forget(client, batch.keys[:there][ok[:there]])
            if damaged.size:
                ok[damaged] = self._mend(client, batch, known, damaged)
        if there == len(batch):
            return ok
        if not batch.part.last:
            ok[there:] = self._hold(client, batch, np.arange(there, len(batch)))
            return ok
        slots = self._whole_but_last(client, batch.keys[there:])
        where = np.arange(there, there + len(slots))
        try:
            batch.write(store, slots, where)
            landed = client.insert(path[: first + there + len(slots)], slots, first + there)
        except BaseException:
            recycle(client, slots, _FULL)
            raise
        if landed.error in (InsertError.BUSY, InsertError.BAD_REQUEST):
            client.recycle_slots(slots)
        elif landed.error == InsertError.OK:
            ok[where] = True
        else:
            ok[there : max(landed.landed[1] - first, there)] = True
        return ok

    def _whole_but_last(self, client: RadixClient, keys: Keys) -> SlotIds:
        """Slots for the leading pages of which only the KV is missing; they are the caller's."""
        if not self._sidecars:
            return client.allocate_slots(min(len(keys), client.mempool_total()))
        slots: list[int] = []
        for key in keys.tolist():
            held = self._held.get(_FULL, key)
            if held is None or held.in_index or held.parts != self._sidecars:
                break
            slots.append(int(self._held.take(held).slots[0]))
        return np.array(slots, np.int32)

    def _hold(self, client: RadixClient, batch: Batch, where: Where) -> Mask:
        """Write a sidecar's part of pages that are not in the index. Returns: which."""
        keys = batch.keys[where].tolist()
        for key in keys:
            if (old := self._held.get(_FULL, key)) is not None and old.in_index:
                self._held.take(old)  # its page was evicted: the slot may be another one's by now
        new = [key for key in dict.fromkeys(keys) if self._held.get(_FULL, key) is None]
        wanted = min(len(new), max(self._held.room(client, _FULL), 0))
        slots = client.allocate_slots(wanted) if wanted else np.empty(0, np.int32)
        for key, slot in zip(new, slots, strict=False):
            self._held.add(Held(_FULL, np.array([key], np.uint64), np.array([slot], np.int32)))
        held = [self._held.get(_FULL, key) for key in keys]
        return self._write_held(client, batch, where, held)

    def _mend(self, client: RadixClient, batch: Batch, known: SlotIds, damaged: Where) -> Mask:
        """Write damaged pages anew where they are, once all their parts have come."""
        if not self._sidecars:
            assert client.store is not None
            batch.write(client.store, known[damaged], damaged)
            return np.ones(len(damaged), np.bool_)
        held: list[Held | None] = []
        for position in damaged.tolist():
            key, slot = batch.keys[position : position + 1], known[position : position + 1]
            old = self._held.get(_FULL, int(key[0]))
            if old is not None and not (old.in_index and old.slots[0] == slot[0]):
                self._held.give_back(client, old)
                old = None
            if old is None and not batch.part.last:
                self._held.add(Held(_FULL, key.copy(), slot.copy(), in_index=True))
                old = self._held.get(_FULL, int(key[0]))
            whole = old is not None and (not batch.part.last or old.parts == self._sidecars)
            held.append(old if whole else None)
        done = self._write_held(client, batch, damaged, held)
        if batch.part.last:
            for each in held:
                if each is not None:
                    self._held.take(each)
        return done

    def _write_held(
        self, client: RadixClient, batch: Batch, where: Where, held: list[Held | None]
    ) -> Mask:
        """Write the pages at `where` that have a held slot. Returns: which."""
        ok = np.array([each is not None for each in held], np.bool_)
        mine = [each for each in held if each is not None]
        if mine and client.store is not None:
            slots = np.array([each.slots[0] for each in mine], np.int32)
            batch.write(client.store, slots, where[ok])
            for each in mine:
                each.parts.add(batch.part.name)
        return ok

    def _forget(self, client: RadixClient, keys: Keys) -> None:
        """Another process stored these pages while slots for them waited here."""
        if len(self._held):
            for key in keys.tolist():
                if (held := self._held.get(_FULL, key)) is not None:
                    self._held.give_back(client, held)
