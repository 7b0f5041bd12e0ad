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
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    RadixClient,
    RadixError,
    ServerNotReady,
)

from .events import EventLog
from .groups import GroupMap
from .keys import Keys, hash_of
from .metrics import Figures, Meter
from .path import RequestPath
from .pulls import Pull
from .quarantine import Found, Quarantine, Slot
from .request import RequestState
from .stores import Stores
from .transfer import SlotSpec, life_of

__all__ = ["RadixShmemManager"]

_log = logging.getLogger("radixshmem.vllm")

_FULL, _SWA, _MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA
_HIT, _MISS = base.LookupResult.HIT, base.LookupResult.MISS
_PENDING, _RETRY = base.LookupResult.HIT_PENDING, base.LookupResult.RETRY


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
        steps_in_flight: int = 2,
        loads: bool = True,
        stores: bool = True,
        events: bool = False,
    ) -> None:
        self._client = client
        self._keys = Keys(groups)
        self._mask = groups.mask()
        self._windows = self._mask != COMPONENT_MASK_FULL
        self._block_tokens = block_tokens
        self._per_block = hashes_per_block
        self._pull_timeout_ms = pull_timeout_ms
        self._may_load = loads
        self._may_store = stores
        self._events = EventLog.of(client, self._keys.suffixes(_FULL)) if events else None
        self._requests: dict[str, RequestState] = {}
        self._offered: dict[str, Sequence[bytes]] = {}
        self._lost = False  # the server, as far as was told
        self.figures = Figures()
        self._meter = Meter(self.figures, self._gauges)
        self.quarantine = Quarantine(steps_in_flight)
        self.stores = Stores(
            client, groups, self._keys, self.quarantine, self.figures, self._events
        )
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

    def note_failures(self, failed_slots: Collection[Slot], failed_requests: Iterable[str]) -> None:
        """Slots that some rank could not write, and requests that some rank could not load."""
        self.stores.note_failures(failed_slots)
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
        self._recycle(self.quarantine.note_late(late, ended))

    def on_reset_flushed(self) -> None:
        """vLLM 0.33: the workers have stopped with all of before the last reset."""
        self._recycle(self.quarantine.note_flush())

    def has_pending_work(self) -> bool:
        """Whether vLLM is to make steps although no request is left."""
        return bool(self.quarantine.resets)

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
        self._requests[req_context.req_id] = RequestState(RequestPath(live, self._per_block))
        return base.RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> base.LookupResult:
        # Called for each block of each group: what the round found is one look into a dict.
        request = self._requests.get(req_context.req_id)
        if request is None:
            return _MISS
        if key in request.hits:
            return _HIT if self._events is None else self._events.found(key)
        return self._lookup_first_or_missing(request, key)

    def _lookup_first_or_missing(self, request: RequestState, key: OffloadKey) -> base.LookupResult:
        """The first lookup of a round, which makes its query, and those that are no hit."""
        if request.banned or not self._may_load:
            return _MISS
        if request.found is None:
            self._find(request)
            if key in request.hits:
                return _HIT if self._events is None else self._events.found(key)
        if self._keys.block(key) in self.stores:
            return _PENDING
        if request.pull is not None:
            position = request.path.position(hash_of(key))
            if position is not None and position < request.pull.planned_hit:
                return _RETRY
        return _MISS

    def _find(self, request: RequestState) -> None:
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

    def _query(self, request: RequestState, words: npt.NDArray[np.uint64]) -> Found:
        if not request.pulled:
            request.pulled = True
            request.pull = Pull(self._client, words, self._mask, self._pull_timeout_ms)
        pull = request.pull
        if pull is not None and not pull.runs():
            request.pull = None
            result = pull.result()
            self._count_pull(pull, 0 if result is None else result.common_hit)
            if result is not None:
                return result
            pull = None
        found = self._client.query(words, self._mask, local_only=True, lock=True)
        if pull is not None and found.common_hit >= pull.planned_hit:  # there before it is told
            request.give_up_pull()
            self._count_pull(pull, found.common_hit)
        return found

    def _count_pull(self, pull: Pull, hit: int) -> None:
        self.figures.failed_pulls += hit < pull.planned_hit
        self.figures.pulled_blocks += max(hit - pull.local_hit, 0)

    def _slots_by_key(self, path: RequestPath, found: Found) -> dict[bytes, int]:
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
        for group, component in self._keys.component_of.items():
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
            return SlotSpec.void(len(keys), req_context.req_id)
        slots = np.fromiter(map(request.hits.__getitem__, keys), np.int32, len(keys))
        return SlotSpec(slots, life_of(self._client), req_context.req_id)

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

    def _forget_if_done(self, request_id: str, request: RequestState) -> None:
        if request.done and request.loads == 0:
            del self._requests[request_id]

    # ------------------------------------------------------------ stores

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> base.PrepareStoreOutput:
        request = self._requests.get(req_context.req_id) if self._may_store else None
        if request is not None:
            try:
                chosen, slots = self.stores.prepare(request.path, keys)
                spec = SlotSpec(
                    np.array(slots, np.int32), life_of(self._client), req_context.req_id
                )
                return base.PrepareStoreOutput(chosen, spec, [])
            except RadixError as error:
                self._server_lost(error)
        return base.PrepareStoreOutput([], SlotSpec.void(0, req_context.req_id), [])

    def on_schedule_end(self, context: base.ScheduleEndContext) -> None:
        if self.quarantine.resets:
            self._recycle(self.quarantine.note_step())
        if not self.stores.gathering:
            return
        try:
            self.stores.end_step()
        except RadixError as error:
            self._server_lost(error)

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        try:
            self.stores.complete(keys, success)
        except RadixError as error:
            self._server_lost(error)

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
        try:
            self.quarantine.reset(self.stores.reset(), pins)
        except RadixError as error:
            self._server_lost(error)
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
        return life_of(self._client)

    def _recycle(self, slots: Collection[Slot]) -> None:
        try:
            self.stores.recycle(slots)
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
        self.stores.forget()
        self.quarantine.forget()
        if self._events is not None:
            self._events.forget()
        for request in self._requests.values():
            request.release()
            request.give_up_pull()
