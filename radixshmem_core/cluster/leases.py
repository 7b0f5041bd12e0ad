# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Pins that this server holds for peers while they pull: for a bounded time, then never again."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from typing import TYPE_CHECKING

import numpy as np

from .. import _core
from ..errors import RadixError
from . import wire

if TYPE_CHECKING:
    from .._core import QueryResult

__all__ = ["Leases"]

_MAX_LEASES = 1024
_MAX_TTL_S = 60.0


class Leases:
    """The leases of one life of an index; in the event loop (a pinned query takes microseconds)."""

    def __init__(self, index: _core.Index, digest: int) -> None:
        self._index = index
        self._digest = digest
        # A number of an earlier life, of this server or of its epoch, must mean nothing here.
        self._ids = itertools.count(secrets.randbits(62))
        self._held: dict[int, tuple[QueryResult, asyncio.TimerHandle]] = {}
        self.granted = 0
        self.expired = 0

    def __len__(self) -> int:
        return len(self._held)

    def grant(self, request: wire.Lease) -> wire.Leased:
        """Match anew, pin, and say what was found; lease 0 with a hit of 0 for nothing."""
        life = self._index.incarnation, self._digest
        if (request.incarnation, request.digest) != life:
            return wire.Leased(lease=0, common_hit=0)
        if len(request.hashes) % 8 or not 0 < request.ttl_s <= _MAX_TTL_S or request.start < 0:
            raise RadixError(
                f"a lease for {len(request.hashes)} bytes of hashes from block {request.start} "
                f"and {request.ttl_s:g} s makes no sense"
            )
        if len(self._held) >= _MAX_LEASES:
            raise RadixError(f"{_MAX_LEASES} leases are held already; ask another peer")
        hashes = np.frombuffer(request.hashes, np.uint64)
        found = self._index.query(hashes, request.mask, True, True, True)
        if found.common_hit == 0:
            return wire.Leased(lease=0, common_hit=0)
        number = next(self._ids)
        timer = asyncio.get_running_loop().call_later(request.ttl_s, self._expire, number)
        self._held[number] = (found, timer)
        self.granted += 1
        mamba = found.mamba
        return wire.Leased(
            lease=number,
            common_hit=found.common_hit,
            full_slots=found.full_slots[request.start :].tobytes(),
            swa_start=found.swa_start,
            swa_slots=found.swa_slots.tobytes(),
            mamba=-1 if mamba is None else mamba[1],
        )

    def end(self, number: int) -> wire.LeaseState:
        """Whether the lease was held until now, in this incarnation, with nothing reset."""
        found, timer = self._held.pop(number, (None, None))
        if found is None or timer is None:
            return wire.LeaseState(held=False, incarnation=self._index.incarnation)
        timer.cancel()
        held = found.validate()
        found.finalize()
        return wire.LeaseState(held=held, incarnation=self._index.incarnation)

    def figures(self) -> dict[str, int]:
        return {"held": len(self._held), "granted": self.granted, "expired": self.expired}

    def close(self) -> None:
        for found, timer in self._held.values():
            timer.cancel()
            found.finalize()
        self._held.clear()

    def _expire(self, number: int) -> None:
        found, _ = self._held.pop(number)
        found.finalize()
        self.expired += 1
