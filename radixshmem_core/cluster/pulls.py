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
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import RadixError
from ..node import Runner
from ..store import SlotStore
from ..tasks import cancel_all
from ..values import COMPONENT_MASK_MAMBA, COMPONENT_MASK_SWA, ComponentType, InsertError
from . import wire
from .peers import Peer
from .planes.base import DataPlane, PeerKey, Transfer

__all__ = ["PullDeadline", "PullFigures", "PullOutcome", "Puller"]

_log = logging.getLogger("radixshmem.server")

_ASK_TIMEOUT_S = 2.0
_LEASE_MARGIN_S = 2.0
_MAX_LEASE_S = 30.0
_FIRST_POLL_S = 0.0002
_LAST_POLL_S = 0.005
_LATE_POLL_S = 0.05

_FULL, _SWA, _MAMBA = ComponentType
_Slots = npt.NDArray[np.int32]


@dataclass
class PullFigures:
    """Totals since the start, for `status`."""

    jobs: int = 0
    pulled_blocks: int = 0
    pulled_bytes: int = 0
    transfer_failures: int = 0
    leases_lost: int = 0
    staging_shortfalls: int = 0
    promotion_shortfalls: int = 0
    kept_back_slots: int = 0


class PullDeadline:
    """When a job ends, whatever has arrived. `pass_now` is how a job is cancelled: a transfer that
    has begun must be seen to its end by somebody."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    def left_s(self) -> float:
        return max(0.0, self._at - time.monotonic())

    def passed(self) -> bool:
        return time.monotonic() >= self._at

    def pass_now(self) -> None:
        self._at = 0.0


@dataclass
class PullOutcome:
    """What one job brought."""

    common_hit: int
    remote_blocks: int = 0
    remote_bytes: int = 0
    source_rank: int = -1
    staging_shortfalls: int = 0
    promotion_shortfalls: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass
class _Part:
    """Slots of one pool: where they are at the peer, and where they go."""

    kind: ComponentType
    theirs: _Slots
    ours: _Slots


class Puller:
    """Pulls of one life of an index."""

    def __init__(
        self,
        index: _core.Index,
        store: SlotStore,
        slot_bytes: dict[ComponentType, int],
        plane: DataPlane,
        run: Runner,
        peer_of: Callable[[int], Peer | None],
        max_inflight: int,
    ) -> None:
        """`slot_bytes`: what a block needs in each pool, without the padding."""
        self._index = index
        self._store = store
        self._slot_bytes = slot_bytes
        self._plane = plane
        self._run = run
        self._peer_of = peer_of
        self._room = asyncio.Semaphore(max_inflight)
        self._late: set[asyncio.Task[None]] = set()
        self._inserting = asyncio.Lock()
        self._closed = False
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
        async with self._room:
            for rank, claimed in candidates:
                if claimed <= outcome.common_hit or deadline.passed():
                    continue
                peer = self._peer_of(rank)
                if peer is None or peer.description is None or not peer.reachable:
                    continue
                try:
                    await self._from(peer, hashes, mask, outcome, deadline)
                except RadixError as error:
                    outcome.failures.append(str(error))
                    self.figures.transfer_failures += 1
                    _log.info("pulling from peer %s: %s", peer.name, error)
        self.figures.pulled_blocks += outcome.remote_blocks
        self.figures.pulled_bytes += outcome.remote_bytes
        self.figures.staging_shortfalls += outcome.staging_shortfalls
        self.figures.promotion_shortfalls += outcome.promotion_shortfalls
        return outcome

    async def close(self) -> None:
        """After this nothing is inserted any more, whatever is still on its way."""
        async with self._inserting:
            self._closed = True
        await cancel_all(self._late)

    async def _from(
        self,
        peer: Peer,
        hashes: npt.NDArray[np.uint64],
        mask: int,
        outcome: PullOutcome,
        deadline: PullDeadline,
    ) -> None:
        description = peer.description
        assert description is not None
        start = outcome.common_hit
        lease = await peer.link.ask(
            wire.Lease(
                incarnation=description.incarnation,
                hashes=hashes.tobytes(),
                mask=mask,
                start=start,
                ttl_s=min(deadline.left_s() + _LEASE_MARGIN_S, _MAX_LEASE_S),
            ),
            min(_ASK_TIMEOUT_S, max(deadline.left_s(), 0.01)),
        )
        if not isinstance(lease, wire.Leased) or lease.lease == 0 or lease.common_hit <= start:
            if isinstance(lease, wire.Leased) and lease.lease:
                await self._end(peer, lease)
            return
        if lease.common_hit > len(hashes):
            raise RadixError(f"a lease of {lease.common_hit} blocks of {len(hashes)}")
        parts, hit = await self._make_room(lease, mask, start, outcome)
        free_now = True
        try:
            if hit > start:
                key = await self._connected(peer, description)
                transfer = await self._read(key, description, parts)
                free_now = await self._finish(transfer, parts, deadline)
                if free_now and await self._end(peer, lease):
                    lease = wire.Leased(lease=0, common_hit=hit)
                    async with self._inserting:
                        if not self._closed:
                            await self._insert(hashes, hit, start, parts, outcome)
                    outcome.source_rank = peer.member.rank
        finally:
            if free_now:
                await self._recycle(parts)
            if lease.lease:
                with contextlib.suppress(RadixError):
                    await self._end(peer, lease)

    async def _make_room(
        self, lease: wire.Leased, mask: int, start: int, outcome: PullOutcome
    ) -> tuple[list[_Part], int]:
        """Local slots for what the lease names; FULL may come back short."""
        theirs = np.frombuffer(lease.full_slots, np.int32)
        if len(theirs) != lease.common_hit - start:
            raise RadixError(f"a lease of {lease.common_hit} blocks with {len(theirs)} slots")
        parts: list[_Part] = []
        windowed = mask & (COMPONENT_MASK_SWA | COMPONENT_MASK_MAMBA)
        ours = await self._allocate(len(theirs), _FULL)
        parts.append(_Part(_FULL, theirs[: len(ours)], ours))
        hit = start + len(ours)
        if len(ours) < len(theirs):
            outcome.staging_shortfalls += 1
            if windowed:  # a window belongs to its own end
                return parts, start
        if mask & COMPONENT_MASK_SWA:
            window = np.frombuffer(lease.swa_slots, np.int32)
            ours = await self._allocate(len(window), _SWA)
            parts.append(_Part(_SWA, window[: len(ours)], ours))
            hit = hit if len(ours) == len(window) else start
        if mask & COMPONENT_MASK_MAMBA:
            state = np.array([lease.mamba], np.int32)
            ours = await self._allocate(1, _MAMBA)
            parts.append(_Part(_MAMBA, state[: len(ours)], ours))
            hit = hit if len(ours) == 1 and lease.mamba >= 0 else start
        return parts, hit

    async def _allocate(self, count: int, kind: ComponentType) -> _Slots:
        if count == 0:
            return np.empty(0, np.int32)
        total = self._index.slots_total(kind)
        return await self._run(self._index.allocate_slots, min(count, total), int(kind))

    async def _recycle(self, parts: Sequence[_Part]) -> None:
        for part in parts:
            slots, part.ours = part.ours, part.ours[:0]
            if len(slots):
                await self._run(self._index.recycle_slots, slots, int(part.kind))

    async def _connected(self, peer: Peer, description: wire.Description) -> PeerKey:
        key = PeerKey(peer.member.rank, description.incarnation)
        if peer.plane_incarnation != description.incarnation:
            reply = await peer.link.ask(wire.PlaneMetadata(plane=self._plane.name), _ASK_TIMEOUT_S)
            if not isinstance(reply, wire.PlaneReply):
                raise RadixError(f"an answer {type(reply).__name__} for the data plane's metadata")
            await self._run(self._plane.connect, key, reply.metadata)
            peer.plane_incarnation = description.incarnation
        return key

    async def _read(
        self, key: PeerKey, description: wire.Description, parts: Sequence[_Part]
    ) -> Transfer:
        remote: list[int] = []
        local: list[int] = []
        lengths: list[int] = []
        for part in parts:
            base, stride, count = description.pools[part.kind.name.lower()]
            if len(part.theirs) and not 0 <= part.theirs.min() <= part.theirs.max() < count:
                raise RadixError(f"a lease names slots outside the {part.kind.name} pool")
            remote += (base + part.theirs.astype(np.int64) * stride).tolist()
            local += [self._store.slot_offset(slot, part.kind) for slot in part.ours.tolist()]
            lengths += [self._slot_bytes[part.kind]] * len(part.ours)
        return await self._run(self._plane.read, key, remote, local, lengths)

    async def _finish(
        self, transfer: Transfer, parts: Sequence[_Part], deadline: PullDeadline
    ) -> bool:
        """Wait for the transfer. False: it may still write into the slots, which are kept back.

        RadixError when it failed, and is over.
        """
        pause = _FIRST_POLL_S
        while (state := transfer.poll()) == "pending":
            if deadline.passed():
                self._keep_back(transfer, parts)
                return False
            await asyncio.sleep(pause)
            pause = min(_LAST_POLL_S, pause * 1.5)
        transfer.release()
        if state == "failed":
            raise RadixError("the transfer failed")
        return True

    def _keep_back(self, transfer: Transfer, parts: Sequence[_Part]) -> None:
        held = [_Part(part.kind, part.theirs, part.ours) for part in parts]
        self.figures.kept_back_slots += sum(len(part.ours) for part in held)
        self.figures.transfer_failures += 1

        async def wait() -> None:
            while transfer.poll() == "pending":
                await asyncio.sleep(_LATE_POLL_S)
            transfer.release()
            self.figures.kept_back_slots -= sum(len(part.ours) for part in held)
            await self._recycle(held)

        task = asyncio.create_task(wait())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _end(self, peer: Peer, lease: wire.Leased) -> bool:
        """End the lease at its owner. Whether it held until now: else the bytes mean nothing."""
        state = await peer.link.ask(wire.LeaseEnd(lease=lease.lease), _ASK_TIMEOUT_S)
        description = peer.description
        held = (
            isinstance(state, wire.LeaseState)
            and state.held
            and description is not None
            and state.incarnation == description.incarnation
        )
        if not held:
            self.figures.leases_lost += 1
        return held

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
