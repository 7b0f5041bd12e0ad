# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Bringing blocks of peers into local slots.

For each candidate, deepest first: lease its slots (the owner matches anew and pins), read them
one-sided into slots of this server, ask the owner whether the lease held to the end, and only then
insert. What a peer could not give costs its part alone; the job ends with what is there. Slots that
a transfer may still write to are kept back until it is known to be over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import RadixError
from ..node import Runner
from ..store import SlotStore
from ..values import (
    COMPONENT_MASK_FULL,
    COMPONENT_MASK_MAMBA,
    COMPONENT_MASK_SWA,
    ComponentType,
    InsertError,
)
from . import wire
from .peers import Peer
from .planes.base import DataPlane, PeerKey, Transfer
from .pull_state import PullDeadline, PullFigures, PullOutcome

__all__ = ["Puller"]

_log = logging.getLogger("radixshmem.server")

_ASK_TIMEOUT_S = 2.0
_LEASE_MARGIN_S = 2.0
_MAX_LEASE_S = 30.0
_FIRST_POLL_S = 0.0002
_LAST_POLL_S = 0.005
_LATE_POLL_S = 0.05
_RETRY_S = 1.0

_FULL, _SWA, _MAMBA = ComponentType
_Slots = npt.NDArray[np.int32]


@dataclass
class _Part:
    """Slots of one pool: where they are at the peer, and where they go."""

    kind: ComponentType
    theirs: _Slots
    ours: _Slots


class Puller:
    """Pulls of one life of an index, under one digest."""

    def __init__(
        self,
        index: _core.Index,
        store: SlotStore,
        slot_bytes: dict[ComponentType, int],
        plane: DataPlane,
        run: Runner,
        digest: int,
        peer_of: Callable[[int], Peer | None],
        max_inflight: int,
    ) -> None:
        """`slot_bytes`: what a block needs in each pool, without the padding."""
        self._index = index
        self._store = store
        self._slot_bytes = slot_bytes
        self._plane = plane
        self._run = run
        self._digest = digest
        self._peer_of = peer_of
        self._room = asyncio.Semaphore(max_inflight)
        self._known: dict[int, PeerKey] = {}  # by rank: whose slots the plane is connected to
        self._doubtful: set[PeerKey] = set()  # of these: their metadata may be others by now
        self._late: set[asyncio.Task[None]] = set()
        self._inserting = asyncio.Lock()
        self._closed = False
        self._complaints: dict[str, str] = {}  # the last reason, by peer
        self.figures = PullFigures()

    async def pull(
        self,
        hashes: npt.NDArray[np.uint64],
        mask: int,
        local_hit: int,
        candidates: Sequence[tuple[int, int]],
        deadline: PullDeadline,
    ) -> PullOutcome:
        """Try the candidates (rank, claimed blocks) until `deadline`."""
        self.figures.jobs += 1
        outcome = PullOutcome(local_hit)
        try:
            await deadline.within(self._room.acquire())
        except RadixError as error:
            outcome.failures.append(str(error))
            return outcome
        try:
            for rank, claimed in candidates:
                if claimed > outcome.common_hit and not deadline.passed():
                    await self._try(rank, hashes, mask | COMPONENT_MASK_FULL, outcome, deadline)
        finally:
            self._room.release()
        self.figures.pulled_blocks += outcome.remote_blocks
        self.figures.pulled_bytes += outcome.remote_bytes
        self.figures.staging_shortfalls += outcome.staging_shortfalls
        self.figures.promotion_shortfalls += outcome.promotion_shortfalls
        return outcome

    def forget_others(self) -> None:
        """The peers changed: let go of what the plane holds of those that are gone."""
        for rank, key in list(self._known.items()):
            peer = self._peer_of(rank)
            if peer is None or peer.description is None or not peer.reachable:
                del self._known[rank]
                self._doubtful.discard(key)
                self._plane.forget(key)

    async def close(self) -> None:
        """After this nothing is inserted any more, whatever is still on its way."""
        async with self._inserting:
            self._closed = True
        for key in self._known.values():
            self._plane.forget(key)
        self._known.clear()

    async def _try(
        self,
        rank: int,
        hashes: npt.NDArray[np.uint64],
        mask: int,
        outcome: PullOutcome,
        deadline: PullDeadline,
    ) -> None:
        peer = self._peer_of(rank)
        said = None if peer is None or not peer.reachable else peer.description
        if peer is None or said is None or said.digest != self._digest or self._closed:
            return
        try:
            await self._from(peer, said, hashes, mask, outcome, deadline)
        except Exception as error:  # whatever it is, it costs this peer's part alone
            outcome.failures.append(str(error))
            self.figures.transfer_failures += 1
            self._complain(peer.name, str(error))

    def _complain(self, name: str, error: str) -> None:
        """Once for each peer and reason in a row."""
        level = logging.INFO if self._complaints.get(name) == error else logging.WARNING
        self._complaints[name] = error
        _log.log(level, "pulling from peer %s: %s", name, error)

    async def _from(
        self,
        peer: Peer,
        said: wire.Description,
        hashes: npt.NDArray[np.uint64],
        mask: int,
        outcome: PullOutcome,
        deadline: PullDeadline,
    ) -> None:
        head = self._index.query(hashes, COMPONENT_MASK_FULL, True, True, False)
        start = head.common_hit  # of the FULL blocks; what is here stays until the end
        if mask == COMPONENT_MASK_FULL:
            outcome.common_hit = max(outcome.common_hit, start)
        parts: list[_Part] = []
        lease = transfer = None
        try:
            lease = await self._lease(peer, said, hashes, mask, start, deadline)
            hit = await self._make_room(lease, len(hashes), mask, start, parts, outcome)
            if hit <= outcome.common_hit:
                return
            key = await deadline.within(self._connected(peer, said))
            transfer = await self._read(key, said, parts)
            await self._arrive(key, transfer, deadline)
            await self._confirm(peer, said, lease, deadline)
            lease = None
            async with self._inserting:
                if not self._closed:
                    await self._insert(hashes, hit, start, parts, outcome)
            if outcome.common_hit >= hit:
                outcome.source_rank = peer.member.rank
        finally:
            head.finalize()
            if lease is not None and lease.lease:
                self._spawn(self._end(peer, lease))
            self._give_back(parts, transfer)

    async def _lease(
        self,
        peer: Peer,
        said: wire.Description,
        hashes: npt.NDArray[np.uint64],
        mask: int,
        start: int,
        deadline: PullDeadline,
    ) -> wire.Leased:
        request = wire.Lease(
            incarnation=said.incarnation,
            digest=self._digest,
            hashes=hashes.tobytes(),
            mask=mask,
            start=start,
            ttl_s=min(deadline.left_s() + _LEASE_MARGIN_S, _MAX_LEASE_S),
        )
        lease = await deadline.within(peer.link.ask(request, _ASK_TIMEOUT_S))
        if not isinstance(lease, wire.Leased):
            raise RadixError(f"an answer {type(lease).__name__} to a request for a lease")
        return lease

    async def _make_room(
        self,
        lease: wire.Leased,
        blocks: int,
        mask: int,
        start: int,
        parts: list[_Part],
        outcome: PullOutcome,
    ) -> int:
        """Local slots for what the lease names; FULL may come back short. The end of the path that
        is here once they are filled."""
        if lease.common_hit <= outcome.common_hit:
            return 0
        windows = self._windows(lease, mask)
        theirs = np.frombuffer(lease.full_slots, np.int32)
        if lease.common_hit > blocks or len(theirs) != max(0, lease.common_hit - start):
            raise RadixError(
                f"a lease of {lease.common_hit} of {blocks} blocks with {len(theirs)} slots from "
                f"block {start} on"
            )
        hit = lease.common_hit
        for kind, slots in ((_FULL, theirs), *windows):
            ours = await self._allocate(len(slots), kind)
            parts.append(_Part(kind, slots[: len(ours)], ours))
            if len(ours) < len(slots):
                outcome.staging_shortfalls += 1
                if windows:  # a window belongs to its own end
                    return 0
                hit = start + len(ours)
        return hit

    @staticmethod
    def _windows(lease: wire.Leased, mask: int) -> list[tuple[ComponentType, _Slots]]:
        found = []
        if mask & COMPONENT_MASK_SWA:
            found.append((_SWA, np.frombuffer(lease.swa_slots, np.int32)))
        if mask & COMPONENT_MASK_MAMBA:
            found.append((_MAMBA, np.array([lease.mamba], np.int32)))
        return found

    async def _allocate(self, count: int, kind: ComponentType) -> _Slots:
        if count == 0:
            return np.empty(0, np.int32)
        total = self._index.slots_total(kind)
        return await self._run(self._index.allocate_slots, min(count, total), int(kind))

    async def _connected(self, peer: Peer, said: wire.Description) -> PeerKey:
        key = PeerKey(peer.member.rank, said.incarnation)
        known = self._known.get(key.rank)
        if known != key or key in self._doubtful:
            reply = await peer.link.ask(wire.PlaneMetadata(plane=self._plane.name), _ASK_TIMEOUT_S)
            if not isinstance(reply, wire.PlaneReply):
                raise RadixError(f"an answer {type(reply).__name__} for the data plane's metadata")
            if known is not None and known != key:
                self._plane.forget(known)
            await self._run(self._plane.connect, key, reply.metadata)
            self._known[key.rank] = key
            self._doubtful.discard(key)
        return key

    async def _read(self, key: PeerKey, said: wire.Description, parts: Sequence[_Part]) -> Transfer:
        remote: list[int] = []
        local: list[int] = []
        lengths: list[int] = []
        for part in parts:
            base, stride, count = said.pools[part.kind.name.lower()]
            if len(part.theirs) and not 0 <= part.theirs.min() <= part.theirs.max() < count:
                raise RadixError(f"a lease names slots outside the {part.kind.name} pool")
            remote += (base + part.theirs.astype(np.int64) * stride).tolist()
            local += [self._store.slot_offset(slot, part.kind) for slot in part.ours.tolist()]
            lengths += [self._slot_bytes[part.kind]] * len(part.ours)
        return await self._run(self._plane.read, key, remote, local, lengths)

    async def _arrive(self, key: PeerKey, transfer: Transfer, deadline: PullDeadline) -> None:
        """Wait until the bytes are here. RadixError when they failed, or are late."""
        pause = _FIRST_POLL_S
        while (state := transfer.poll()) == "pending":
            if deadline.passed():
                raise RadixError("the transfer is not over at the deadline of the pull")
            await asyncio.sleep(pause)
            pause = min(_LAST_POLL_S, pause * 1.5)
        if state == "failed":
            self._doubtful.add(key)
            raise RadixError("the transfer failed")

    async def _confirm(
        self, peer: Peer, said: wire.Description, lease: wire.Leased, deadline: PullDeadline
    ) -> None:
        """RadixError unless the lease held until now: else the bytes mean nothing."""
        state = await deadline.within(self._end(peer, lease))
        if not state.held or state.incarnation != said.incarnation:
            self.figures.leases_lost += 1
            raise RadixError("the lease was lost during the transfer")

    async def _end(self, peer: Peer, lease: wire.Leased) -> wire.LeaseState:
        state = await peer.link.ask(wire.LeaseEnd(lease=lease.lease), _ASK_TIMEOUT_S)
        if not isinstance(state, wire.LeaseState):
            raise RadixError(f"an answer {type(state).__name__} to the end of a lease")
        return state

    def _give_back(self, parts: Sequence[_Part], transfer: Transfer | None) -> None:
        """Recycle the slots that were not inserted, once nothing can write into them any more."""
        left = [_Part(part.kind, part.theirs, part.ours) for part in parts if len(part.ours)]
        if left or transfer is not None:
            self._spawn(self._recycle(left, transfer))

    async def _recycle(self, parts: Sequence[_Part], transfer: Transfer | None) -> None:
        count = sum(len(part.ours) for part in parts)
        if transfer is not None and transfer.poll() == "pending":
            self.figures.kept_back_slots += count
            while transfer.poll() == "pending":
                await asyncio.sleep(_LATE_POLL_S)
            self.figures.kept_back_slots -= count
        for part in parts:
            while True:
                try:
                    await self._run(self._index.recycle_slots, part.ours, int(part.kind))
                    break
                except TimeoutError as error:  # a stopped process holds the lock
                    _log.warning("%d slots cannot be recycled yet: %s", len(part.ours), error)
                    await asyncio.sleep(_RETRY_S)

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """To be done without anybody waiting for it; its errors matter to nobody."""

        async def run() -> None:
            try:
                await work
            except Exception as error:
                _log.info("after a pull: %s", error)

        task = asyncio.create_task(run())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _insert(
        self,
        hashes: npt.NDArray[np.uint64],
        hit: int,
        start: int,
        parts: Sequence[_Part],
        outcome: PullOutcome,
    ) -> None:
        path = hashes[:hit]
        for part in parts:
            if not len(part.ours):
                continue
            at = start if part.kind is _FULL else 0 if part.kind is _SWA else hit - 1
            result = await self._run(self._index.insert, path, part.ours, at, True, int(part.kind))
            if result.error in (InsertError.BAD_REQUEST, InsertError.BUSY):
                outcome.promotion_shortfalls += 1
                return  # the slots are still ours, and recycled
            count = len(part.ours)
            part.ours = part.ours[:0]
            if result.error:
                outcome.promotion_shortfalls += 1
                return  # an ancestor went meanwhile: the slots were recycled
            outcome.remote_bytes += count * self._slot_bytes[part.kind]
            if part.kind is _FULL:
                outcome.remote_blocks += count
        outcome.common_hit = hit
