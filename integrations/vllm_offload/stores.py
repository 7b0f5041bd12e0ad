# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Blocks on their way into the cache.

A slot is allocated when its block is first offered, written by every rank for every group of its
class, and inserted when all of that is reported; nobody ever finds a half-written one. A block
whose parent is still being written is held until that has landed.

Every method may raise RadixError when the server has gone; `forget` then voids what is here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_offload.base import OffloadKey

from radixshmem import COMPONENT_MASK_FULL, ComponentType, InsertError, RadixClient, RadixError

from .events import EventLog
from .groups import GroupMap
from .keys import Block, Keys, group_of
from .metrics import Figures
from .path import RequestPath
from .quarantine import Quarantine, Slot

__all__ = ["Stores"]

_FULL, _SWA, _MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA


@dataclass(slots=True)
class _Pending:
    """A slot that is being written."""

    block_hash: bytes
    slot: int
    position: int
    words: npt.NDArray[np.uint64]  # the path, at least up to the block
    groups: set[bytes] = field(default_factory=set)  # whose part was given to the workers
    writing: int = 0  # parts that the workers have not reported
    bad: bool = False  # some part cannot be had


@dataclass(slots=True)
class _Written:
    """Slots that are written, of consecutive blocks of one path."""

    component: int
    entries: list[_Pending]

    @property
    def begin(self) -> int:
        """Position of the first block."""
        return self.entries[0].position


class Stores:
    """Used by the scheduler's thread alone."""

    def __init__(
        self,
        client: RadixClient,
        groups: GroupMap,
        keys: Keys,
        quarantine: Quarantine,
        figures: Figures,
        events: EventLog | None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._quarantine = quarantine
        self._figures = figures
        self._events = events
        # How many consecutive blocks one insert may take.
        self._longest_run = {_FULL: 1 << 30, _SWA: groups.window_blocks, _MAMBA: 1}
        self._pending: dict[Block, _Pending] = {}
        self.gathering: dict[Block, _Pending] = {}  # those of _pending that lack parts
        self._held: list[_Written] = []  # they wait for their parent block
        self._failed: set[Slot] = set()

    @property
    def empty(self) -> bool:
        return not (self._pending or self.gathering or self._held or self._failed)

    def __contains__(self, block: Block) -> bool:
        """Whether the block is being written."""
        return block in self._pending

    # ------------------------------------------------------------ begin

    def prepare(
        self, path: RequestPath, keys: Collection[OffloadKey]
    ) -> tuple[list[OffloadKey], list[int]]:
        """Those of the keys that are to be stored, in their order, and a slot for each."""
        blocks = self._whole_blocks(path, keys)
        if not blocks:
            return [], []
        allocated = self._allocate_missing(blocks, path.words(max(blocks.values()) + 1).copy())
        self._pending |= allocated
        self.gathering |= allocated
        chosen: list[OffloadKey] = []
        slots: list[int] = []
        for key in keys:
            pending = self._take_part(key)
            if pending is not None:
                chosen.append(key)
                slots.append(pending.slot)
        return chosen, slots

    def _take_part(self, key: OffloadKey) -> _Pending | None:
        """The slot that lacks the part of this key; None when it is or will be there."""
        block = self._keys.block(key)
        pending = self.gathering.get(block)
        group = group_of(key)
        if pending is None or group in pending.groups:
            return None
        pending.groups.add(group)
        pending.writing += 1
        if len(pending.groups) == self._keys.parts[block[0]]:
            del self.gathering[block]
        return pending

    def end_step(self) -> None:
        """Parts of a slot come within one step: what is not whole by now never will be."""
        ended = [block for block, pending in self.gathering.items() if not pending.writing]
        for pending in self.gathering.values():
            pending.bad = True
        self.gathering.clear()
        self.recycle([(block[0], self._pending.pop(block).slot) for block in ended])

    def _whole_blocks(self, path: RequestPath, keys: Collection[OffloadKey]) -> dict[Block, int]:
        """Positions of the blocks that have a key of each group of their class.

        A slot holds all groups of its class; one that lacks a group would be half written. States
        of Mamba groups are offered one by one, and their slot is gathered.
        """
        whole: dict[Block, int] = {}
        for block, parts in Counter(map(self._keys.block, keys)).items():
            component, block_hash = block
            position = path.position(block_hash)
            if position is None:
                continue
            if parts == self._keys.parts[component] or component == _MAMBA:
                whole[block] = position
        return whole

    def _allocate_missing(
        self, blocks: dict[Block, int], words: npt.NDArray[np.uint64]
    ) -> dict[Block, _Pending]:
        """Slots for the blocks that nobody has stored and nobody is storing."""
        allocated: dict[Block, _Pending] = {}
        # The pin keeps the blocks that these are going to hang on while slots are made free.
        anchor = self._client.query(words, COMPONENT_MASK_FULL, local_only=True, lock=True)
        try:
            for component in (_FULL, _SWA, _MAMBA):
                missing = {
                    block: position
                    for block, position in blocks.items()
                    if block[0] == component and block not in self._pending
                }
                present = range(anchor.common_hit)
                if component != _FULL and missing:
                    present = self._present(component, max(missing.values()) + 1, words)
                missing = {b: at for b, at in missing.items() if at not in present}
                slots = self._allocate(len(missing), component)  # perhaps fewer
                for (block, position), slot in zip(missing.items(), slots, strict=False):
                    allocated[block] = _Pending(block[1], slot, position, words)
        finally:
            anchor.finalize()
        return allocated

    def _allocate(self, count: int, component: int) -> list[int]:
        if count == 0:
            return []
        store = self._client.store
        if store is None:
            raise RadixError(f"{self._client.name} was replaced by a server without slots")
        most = min(count, store.pool(component).num_slots)
        slots: list[int] = self._client.allocate_slots(most, component).tolist()
        self._figures.short_allocations += len(slots) < count
        return slots

    def _present(self, component: int, end: int, words: npt.NDArray[np.uint64]) -> range:
        """Positions that have a slot, as far as one query tells; the insert finds the others."""
        mask = COMPONENT_MASK_FULL | 1 << component
        result = self._client.query(words[:end], mask, local_only=True, update_meta=False)
        if result.common_hit < end:
            return range(0)
        return range(result.swa_start if component == _SWA else end - 1, end)

    # ------------------------------------------------------------ end

    def note_failures(self, slots: Collection[Slot]) -> None:
        """Slots that some rank could not write."""
        if slots:  # those of before a reset are in quarantine, whatever they hold
            writing = {(component, p.slot) for (component, _), p in self._pending.items()}
            self._failed |= writing.intersection(slots)

    def complete(self, keys: Collection[OffloadKey], success: bool) -> None:
        """All ranks have reported these."""
        written: dict[int, list[_Pending]] = {}
        spoiled: list[Slot] = []
        for key in keys:
            block = self._keys.block(key)
            pending = self._pending.get(block)
            if pending is None:
                continue  # of a server that was lost
            component, _ = block
            at = component, pending.slot
            if not success or at in self._failed:
                self._failed.discard(at)
                pending.bad = True
            pending.writing -= 1
            if pending.writing or block in self.gathering:
                continue  # other parts are to come
            del self._pending[block]
            if pending.bad:
                spoiled.append(at)
                self._tell(component, [pending], there=False)
            else:
                written.setdefault(component, []).append(pending)
        self._figures.failed_stores += len(spoiled)
        self.recycle(spoiled)
        for component in sorted(written):  # FULL first: the others hang on it
            entries = sorted(written[component], key=lambda pending: pending.position)
            for run in _consecutive(entries, self._longest_run[ComponentType(component)]):
                self._land(_Written(component, run))
        self._retry_held()

    def _land(self, run: _Written) -> None:
        """Insert written slots, or hold them until their parent block is there."""
        entries = run.entries
        end = entries[-1].position + 1
        slots = np.array([entry.slot for entry in entries], np.int32)
        start = run.begin if run.component == _FULL else 0
        result = self._client.insert(
            entries[-1].words[:end], slots, start, auto_recycle=False, component=run.component
        )
        if result.error == InsertError.FULL_PATH_MISSING and self._parent_comes(run):
            self._held.append(run)
            return
        unused = set(slots.tolist())
        if result.error not in (InsertError.BAD_REQUEST, InsertError.BUSY):
            unused = set(result.unused_slots.tolist())
        self.recycle([(run.component, slot) for slot in unused])
        landed = [entry for entry in entries if entry.slot not in unused]
        self._figures.stored_blocks += len(landed)
        if result.error == InsertError.OK:  # what did not land was there
            self._tell(run.component, entries, there=True)
            return
        lost = [entry for entry in entries if entry.slot in unused]
        self._figures.lost_blocks += len(lost)
        self._tell(run.component, landed, there=True)
        self._tell(run.component, lost, there=False)

    def _tell(self, component: int, entries: Sequence[_Pending], *, there: bool) -> None:
        if self._events is None or component != _FULL:
            return
        tell = self._events.announce if there else self._events.withdraw
        tell([entry.block_hash for entry in entries])

    def _parent_comes(self, run: _Written) -> bool:
        """Whether the block that the run hangs on is being written, or waits itself."""
        last = run.entries[-1]
        parent = run.begin - 1 if run.component == _FULL else last.position
        word = int(last.words[parent])
        coming = [
            pending for (component, _), pending in self._pending.items() if component == _FULL
        ]
        coming += [e for held in self._held if held.component == _FULL for e in held.entries]
        return any(int(entry.words[entry.position]) == word for entry in coming)

    def _retry_held(self) -> None:
        before = len(self._held) + 1
        while 0 < len(self._held) < before:  # each that lands may be the parent of others
            waiting, self._held = self._held, []
            before = len(waiting)
            for run in sorted(waiting, key=lambda run: (run.component, run.begin)):
                self._land(run)

    # ------------------------------------------------------------ slots that go back

    def recycle(self, slots: Iterable[Slot]) -> None:
        by_component: dict[int, list[int]] = {}
        for component, slot in self._quarantine.withhold_late(slots):
            by_component.setdefault(component, []).append(slot)
        for component, ids in by_component.items():
            self._client.recycle_slots(np.array(ids, np.int32), component)

    def reset(self) -> list[Slot]:
        """Drop all. Returns: slots that workers may still write."""
        in_flight = [(component, p.slot) for (component, _), p in self._pending.items()]
        waiting = [(held.component, e.slot) for held in self._held for e in held.entries]
        self.forget()
        self.recycle(waiting)
        return in_flight

    def forget(self) -> None:
        """The slots are void: their server has closed or was replaced."""
        self._pending.clear()
        self.gathering.clear()
        self._held.clear()
        self._failed.clear()


def _consecutive(entries: Sequence[_Pending], longest: int) -> list[list[_Pending]]:
    """Sorted entries in runs of consecutive positions of one path, `longest` at most."""
    runs: list[list[_Pending]] = []
    for entry in entries:
        last = runs[-1][-1] if runs else None
        if last is not None and len(runs[-1]) < longest and entry.position == last.position + 1:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return runs
