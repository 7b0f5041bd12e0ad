# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The scheduler's side: what is cached, which slots to load from, which to store into.

One round of lookups of a request is answered from one query, whose pin is kept until the request
has loaded what was found (or asks again): what lookup promised cannot be evicted meanwhile. Slots
are allocated when a store is prepared, and inserted when every rank has reported that its part is
copied, so nobody ever finds a half-written slot.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import OffloadingEvent, OffloadKey, ReqContext

from radixshmem import (
    COMPONENT_MASK_FULL,
    ComponentType,
    InsertError,
    PullResult,
    QueryResult,
    RadixClient,
    RadixError,
    ServerNotReady,
)

from .events import EventLog
from .groups import GroupMap
from .metrics import Figures, Meter
from .path import RequestPath
from .pulls import Pull
from .transfer import SlotSpec

__all__ = ["RadixShmemManager"]

_log = logging.getLogger("radixshmem.vllm")

_FULL, _SWA, _MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA
_GROUP_BYTES = 4  # of an OffloadKey: the group's index behind the hash
_HIT, _MISS = base.LookupResult.HIT, base.LookupResult.MISS
_PENDING, _RETRY = base.LookupResult.HIT_PENDING, base.LookupResult.RETRY


_Found = QueryResult | PullResult


@dataclass(slots=True)
class _Request:
    path: RequestPath
    limit: int | None = None  # blocks that a lookup may reach; None: all
    found: _Found | None = None  # of this round, pinned
    hits: dict[bytes, int] = field(default_factory=dict)  # slots of what it found, by key
    pull: Pull | None = None  # runs in the background
    pulled: bool = False  # or did: there is one for each request
    loads: int = 0  # jobs in flight
    done: bool = False
    banned: bool = False  # a load of it failed: it computes the rest itself

    def release(self) -> None:
        self.hits = {}
        if self.found is not None:
            self.found.finalize()
            self.found = None

    def give_up_pull(self) -> None:
        if self.pull is not None:
            self.pull.cancel()
            self.pull = None


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


@dataclass(slots=True)
class _Quarantine:
    """What workers may still read and write after a reset, until they were told to stop."""

    reports: int  # of workers that are to come before
    slots: list[tuple[int, int]]
    pins: list[_Found]


class RadixShmemManager(base.OffloadingManager):
    """vLLM's OffloadingManager over a RadixClient. Used by the scheduler's thread alone."""

    def __init__(
        self,
        client: RadixClient,
        groups: GroupMap,
        block_tokens: int,
        hashes_per_block: int,
        pull_timeout_ms: int,
        *,
        loads: bool = True,
        stores: bool = True,
        events: bool = False,
    ) -> None:
        self._client = client
        self._groups = groups
        self._mask = groups.mask()
        self._parts = {int(kind): groups.parts(kind) for kind in ComponentType}
        self._windows = self._mask != COMPONENT_MASK_FULL
        self._block_tokens = block_tokens
        self._per_block = hashes_per_block
        self._pull_timeout_ms = pull_timeout_ms
        self._loads = loads
        self._stores = stores
        self._component_of = {
            index.to_bytes(_GROUP_BYTES, "big"): int(group.component)
            for index, group in enumerate(groups.groups)
        }
        full = [key for key, component in self._component_of.items() if component == _FULL]
        self._events = EventLog.of(client, full) if events else None
        self._requests: dict[str, _Request] = {}
        self._offered: dict[str, Sequence[bytes]] = {}
        self._pending: dict[tuple[int, bytes], _Pending] = {}
        self._gathering: dict[tuple[int, bytes], _Pending] = {}  # those of _pending that lack parts
        self._held: list[_Written] = []  # they wait for their parent block
        self._failed_slots: set[tuple[int, int]] = set()
        self._quarantine: list[_Quarantine] = []
        # From 0.33 on vLLM tells when a reset has reached the workers; before, their reports do.
        self._told_of_flush = hasattr(base.OffloadingManager, "on_reset_flushed")
        self._late: set[tuple[int, int, int]] = set()  # (rank, component, slot)
        self._withheld: set[tuple[int, int]] = set()  # to recycle when they are not late any more
        self._lost = False  # the server, as far as was told
        self.figures = Figures()
        self._meter = Meter(self.figures, self._gauges)
        self.reset_done = True  # whether the last reset reached the index

    # ------------------------------------------------------------ called by the connector

    def offer(self, request_id: str, block_hashes: Sequence[bytes]) -> None:
        """The live list of hashes of a request that vLLM is about to announce."""
        self._offered[request_id] = block_hashes

    def begin_round(self, request_id: str, num_tokens: int) -> None:
        """Lookups of a request of so many tokens start anew."""
        request = self._requests.get(request_id)
        if request is None or request.loads:
            return
        # Windows are looked up from the end, one token short of the request: a window that is
        # complete only with the last block would not be the one that is asked for.
        request.limit = (num_tokens - 1) // self._block_tokens if self._windows else None
        request.release()

    def end_request(self, request_id: str) -> None:
        """The request has finished: what it had found is not needed any more."""
        request = self._requests.get(request_id)
        if request is None:
            return
        request.give_up_pull()
        if not request.loads:
            request.release()

    def note_failures(
        self, failed_slots: Collection[tuple[int, int]], failed_requests: Iterable[str]
    ) -> None:
        """Slots that some rank could not write, and requests that some rank could not load."""
        if failed_slots:  # those of before a reset are in quarantine, whatever they hold
            writing = {(component, p.slot) for (component, _), p in self._pending.items()}
            self._failed_slots |= writing.intersection(failed_slots)
        for request_id in failed_requests:
            request = self._requests.get(request_id)
            if request is not None and request.loads:  # not another connector's
                self.figures.failed_loads += 1
                request.banned = True
                request.hits = {}

    def note_late(
        self, late: Iterable[tuple[int, int, int]], ended: Iterable[tuple[int, int, int]]
    ) -> None:
        """(rank, component, slot) of failed stores that a GPU may still be writing, and of those
        of before that have ended: until then nobody else may have the slot."""
        self._late.update(late)
        self._late.difference_update(ended)
        if self._withheld:
            ready = self._withheld - {(component, slot) for _, component, slot in self._late}
            self._withheld -= ready
            self._recycle(ready)

    def note_step(self) -> None:
        """The workers have reported on one more step: slots of before a reset may come free."""
        if self._quarantine and not self._told_of_flush:
            for each in self._quarantine:
                each.reports -= 1
            self._end_quarantine()

    def on_reset_flushed(self) -> None:
        """vLLM 0.33: the workers have stopped with all of before the last reset."""
        for each in self._quarantine:
            each.reports = 0
        self._end_quarantine()

    def _end_quarantine(self) -> None:
        ready = [each for each in self._quarantine if each.reports <= 0]
        self._quarantine = [each for each in self._quarantine if each.reports > 0]
        for each in ready:
            for found in each.pins:
                found.finalize()
            self._recycle(each.slots)

    def has_pending_work(self) -> bool:
        """Whether vLLM is to make steps although no request is left."""
        return bool(self._quarantine)

    @property
    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """Held by vLLM 0.33 over several calls: nothing, since no other thread makes any."""
        return contextlib.nullcontext()

    def config_info(self) -> Sequence[Mapping[str, str | int | float | bool]]:
        """vLLM 0.33: labels of an info metric."""
        return [{}]

    # ------------------------------------------------------------ lookups and loads

    def on_new_request(self, req_context: ReqContext) -> base.RequestOffloadingContext:
        # A request that was not offered has ended already: it is only announced to be forgotten.
        live = self._offered.pop(req_context.req_id, ())
        self._requests[req_context.req_id] = _Request(RequestPath(live, self._per_block))
        return base.RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> base.LookupResult:
        # Called for each block of each group: what the round found is one look into a dict.
        request = self._requests.get(req_context.req_id)
        if request is None:
            return _MISS
        if key in request.hits:
            return _HIT if self._events is None else self._events.found(key)
        return self._lookup_first_or_missing(request, key)

    def _lookup_first_or_missing(self, request: _Request, key: OffloadKey) -> base.LookupResult:
        """The first lookup of a round, which makes its query, and those that are no hit."""
        if request.banned or not self._loads:
            return _MISS
        if request.found is None:
            self._find(request)
            if key in request.hits:
                return _HIT if self._events is None else self._events.found(key)
        if self._block_of(key) in self._pending:
            return _PENDING
        if request.pull is not None:
            position = request.path.position(key[:-_GROUP_BYTES])
            if position is not None and position < request.pull.planned_hit:
                return _RETRY
        return _MISS

    def _find(self, request: _Request) -> None:
        request.path.sync()
        size = len(request.path)
        if request.limit is not None:
            size = min(size, request.limit)
        try:
            request.found = self._query(request, request.path.words(size))
        except RadixError as error:
            self._server_lost(error)
        else:
            self._server_answers()
            request.hits = self._slots_by_key(request.path, request.found)

    def _query(self, request: _Request, words: npt.NDArray[np.uint64]) -> _Found:
        if not request.pulled:
            request.pulled = True
            request.pull = Pull(self._client, words, self._mask, self._pull_timeout_ms)
        result: _Found | None = None
        if request.pull is not None and not request.pull.runs():
            pull, request.pull = request.pull, None
            result = pull.result()
            if result is None:
                self.figures.failed_pulls += 1
            else:
                self.figures.pulled_blocks += result.common_hit - pull.local_hit
        if result is None:
            result = self._client.query(words, self._mask, local_only=True, lock=True)
        return result

    def _slots_by_key(self, path: RequestPath, found: _Found) -> dict[bytes, int]:
        end = found.common_hit
        if end == 0:
            return {}
        checkpoint = [] if found.mamba is None else [found.mamba[1]]
        slots_of: dict[int, list[int]] = {
            _FULL: found.full_slots.tolist(),
            _SWA: found.swa_slots.tolist(),
            _MAMBA: checkpoint,
        }
        hits: dict[bytes, int] = {}
        for group, component in self._component_of.items():
            slots = slots_of[component]  # of the last blocks of the hit
            hashes = path.hashes(end - len(slots), end)
            hits.update(zip([h + group for h in hashes], slots, strict=True))
        return hits

    def prepare_load(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> base.LoadStoreSpec:
        request = self._requests[req_context.req_id]
        request.loads += 1
        if request.found is None:  # the server went between lookup and now: a load that fails
            return SlotSpec.void(len(keys))
        slots = np.fromiter(map(request.hits.__getitem__, keys), np.int32, len(keys))
        return SlotSpec(slots, self._life())

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        request = self._requests.get(req_context.req_id)
        if request is None:
            return
        request.loads -= 1
        if request.done:
            request.release()
        self._forget_if_done(req_context.req_id, request)

    def on_request_finished(self, req_context: ReqContext) -> None:
        request = self._requests.get(req_context.req_id)
        if request is None:
            return
        request.done = True
        self.end_request(req_context.req_id)
        self._forget_if_done(req_context.req_id, request)

    def _forget_if_done(self, request_id: str, request: _Request) -> None:
        if request.done and request.loads == 0:
            del self._requests[request_id]

    # ------------------------------------------------------------ stores

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> base.PrepareStoreOutput:
        request = self._requests.get(req_context.req_id) if self._stores else None
        blocks = self._whole_blocks(request, keys) if request is not None else {}
        if request is None or not blocks:
            return base.PrepareStoreOutput([], SlotSpec.void(0), [])
        last = max(blocks.values())
        words = request.path.words(last + 1).copy()
        try:
            allocated = self._allocate_missing(blocks, words)
            life = self._life()
        except RadixError as error:
            self._server_lost(error)
            return base.PrepareStoreOutput([], SlotSpec.void(0), [])
        self._pending |= allocated
        self._gathering |= allocated
        chosen: list[OffloadKey] = []
        slots: list[int] = []
        for key in keys:
            pending = self._take_part(key)
            if pending is not None:
                chosen.append(key)
                slots.append(pending.slot)
        return base.PrepareStoreOutput(chosen, SlotSpec(np.array(slots, np.int32), life), [])

    def _take_part(self, key: OffloadKey) -> _Pending | None:
        """The slot that lacks the part of this key; None when it is or will be there."""
        block = self._block_of(key)
        pending = self._gathering.get(block)
        group = key[-_GROUP_BYTES:]
        if pending is None or group in pending.groups:
            return None
        pending.groups.add(group)
        pending.writing += 1
        if len(pending.groups) == self._parts[block[0]]:
            del self._gathering[block]
        return pending

    def on_schedule_end(self, context: base.ScheduleEndContext) -> None:
        """Parts of a slot come within one step: what is not whole by now never will be."""
        ended = [block for block, pending in self._gathering.items() if not pending.writing]
        for pending in self._gathering.values():
            pending.bad = True
        self._gathering.clear()
        self._recycle([(block[0], self._pending.pop(block).slot) for block in ended])

    def _block_of(self, key: OffloadKey) -> tuple[int, bytes]:
        """(component, block hash): what a slot is of. Keys of groups of one class share it."""
        return self._component_of[key[-_GROUP_BYTES:]], key[:-_GROUP_BYTES]

    def _whole_blocks(
        self, request: _Request, keys: Collection[OffloadKey]
    ) -> dict[tuple[int, bytes], int]:
        """Positions of the blocks that have a key of each group of their class.

        A slot holds all groups of its class; one that lacks a group would be half written. States
        of Mamba groups are offered one by one, and their slot is gathered.
        """
        whole: dict[tuple[int, bytes], int] = {}
        for block, parts in Counter(map(self._block_of, keys)).items():
            component, block_hash = block
            position = request.path.position(block_hash)
            if position is not None and (parts == self._parts[component] or component == _MAMBA):
                whole[block] = position
        return whole

    def _allocate_missing(
        self, blocks: dict[tuple[int, bytes], int], words: npt.NDArray[np.uint64]
    ) -> dict[tuple[int, bytes], _Pending]:
        """Slots for the blocks that nobody has stored and nobody is storing."""
        allocated: dict[tuple[int, bytes], _Pending] = {}
        store = self._client.store
        assert store is not None
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
                missing = {
                    b: position for b, position in missing.items() if position not in present
                }
                if not missing:
                    continue
                most = min(len(missing), store.pool(component).num_slots)
                got = self._client.allocate_slots(most, component)
                self.figures.short_allocations += len(got) < len(missing)
                for (block, position), slot in zip(missing.items(), got.tolist(), strict=False):
                    allocated[block] = _Pending(block[1], slot, position, words)
        finally:
            anchor.finalize()
        return allocated

    def _present(self, component: int, end: int, words: npt.NDArray[np.uint64]) -> range:
        """Positions that have a slot, as far as one query tells; the insert finds the others."""
        mask = COMPONENT_MASK_FULL | 1 << component
        result = self._client.query(words[:end], mask, local_only=True, update_meta=False)
        if result.common_hit < end:
            return range(0)
        return range(result.swa_start if component == _SWA else end - 1, end)

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        written: dict[int, list[_Pending]] = {}
        spoiled: list[tuple[int, int]] = []
        for key in keys:
            block = self._block_of(key)
            pending = self._pending.get(block)
            if pending is None:
                continue  # of a server that was lost
            component, _ = block
            at = component, pending.slot
            if not success or at in self._failed_slots:
                self._failed_slots.discard(at)
                pending.bad = True
            pending.writing -= 1
            if pending.writing or block in self._gathering:
                continue  # other parts are to come
            del self._pending[block]
            if pending.bad:
                spoiled.append(at)
                self._tell(component, [pending], there=False)
            else:
                written.setdefault(component, []).append(pending)
        self.figures.failed_stores += len(spoiled)
        self._recycle(spoiled)
        try:
            for component in sorted(written):  # FULL first: the others hang on it
                entries = sorted(written[component], key=lambda pending: pending.position)
                for run in _consecutive(entries, self._longest_run(component)):
                    self._land(_Written(component, run))
            self._retry_held()
        except RadixError as error:
            self._server_lost(error)

    def _longest_run(self, component: int) -> int:
        if component == _SWA:
            return self._groups.window_blocks
        return 1 if component == _MAMBA else 1 << 30

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
        self._recycle([(run.component, slot) for slot in unused])
        landed = [entry for entry in entries if entry.slot not in unused]
        self.figures.stored_blocks += len(landed)
        if result.error == InsertError.OK:  # what did not land was there
            self._tell(run.component, entries, there=True)
            return
        lost = [entry for entry in entries if entry.slot in unused]
        self.figures.lost_blocks += len(lost)
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

    # ------------------------------------------------------------ the rest

    def reset_cache(self) -> None:
        """vLLM forgets all its jobs, and asks about none of them any more."""
        pins = []
        for request_id, request in list(self._requests.items()):
            request.give_up_pull()
            request.pulled = False
            if request.loads and request.found is not None:
                pins.append(request.found)
                request.found = None
            request.loads = 0
            request.release()
            self._forget_if_done(request_id, request)
        in_flight = [(component, p.slot) for (component, _), p in self._pending.items()]
        waiting = [(h.component, e.slot) for h in self._held for e in h.entries]
        self._pending.clear()
        self._gathering.clear()
        self._held.clear()
        self._failed_slots.clear()
        self._recycle(waiting)
        if in_flight or pins:
            self._quarantine.append(_Quarantine(2, in_flight, pins))
        if self._events is not None:
            self._events.forget()
        self.reset_done = self._reset_index()

    def _reset_index(self) -> bool:
        try:
            try:
                self._client.reset(cluster=True)
            except ServerNotReady:  # told once when a server was replaced: now it is the new one
                self._client.reset(cluster=True)
        except ServerNotReady as error:
            self._server_lost(error)  # and its cache with it
        except (RadixError, TimeoutError) as error:
            _log.error("radixshmem: the cache was not reset, reset it again: %s", error)
            return False
        return True

    def take_events(self) -> Iterable[OffloadingEvent]:
        return self._events.take() if self._events is not None else ()

    def get_stats(self) -> OffloadingConnectorStats | None:
        return self._meter.take()

    def _gauges(self) -> dict[str, float]:
        pinned = sum(request.found is not None for request in self._requests.values())
        try:
            used = self._client.mempool_used() / self._client.mempool_total()
        except RadixError as error:
            self._server_lost(error)
            return {"pinned_requests": 0}
        self._server_answers()
        return {"cache_usage_perc": used, "pinned_requests": pinned}

    def shutdown(self) -> None:
        for request in self._requests.values():
            request.give_up_pull()
            request.release()
        self._client.close()

    @property
    def nonce(self) -> int:
        """Of the server's life that it has attached to."""
        return self._life()

    def _life(self) -> int:
        store = self._client.store
        return store.nonce if store is not None else 0

    def _recycle(self, slots: Iterable[tuple[int, int]]) -> None:
        late = {(component, slot) for _, component, slot in self._late}
        by_component: dict[int, list[int]] = {}
        for component, slot in slots:
            if (component, slot) in late:
                self._withheld.add((component, slot))
            else:
                by_component.setdefault(component, []).append(slot)
        try:
            for component, ids in by_component.items():
                self._client.recycle_slots(np.array(ids, np.int32), component)
        except RadixError as error:
            self._server_lost(error)

    def _server_answers(self) -> None:
        if self._lost:
            _log.warning("radixshmem: the server is back")
        self._lost = False

    def _server_lost(self, error: RadixError) -> None:
        """Slot ids of a server that has closed or was replaced are void."""
        if not self._lost:
            self.figures.lost_servers += 1
            _log.warning("radixshmem: %s; until it is back all lookups miss", error)
        self._lost = True
        self._pending.clear()
        self._gathering.clear()
        self._held.clear()
        self._failed_slots.clear()
        for each in self._quarantine:
            for found in each.pins:
                found.finalize()
        self._quarantine.clear()
        if self._events is not None:
            self._events.forget()
        self._late.clear()
        self._withheld.clear()
        for request in self._requests.values():
            request.release()
            request.give_up_pull()


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
