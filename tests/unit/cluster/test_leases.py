# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What a lease is good for: one life of one index, under one digest, for a bounded time."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from radixshmem_core.cluster import leases as leases_module
from radixshmem_core.cluster.leases import Leases
from radixshmem_core.cluster.wire import Lease, Leased
from radixshmem_core.errors import RadixError

INCARNATION, DIGEST = 11, 22


class Found:
    common_hit = 3
    full_slots = np.array([7, 8, 9], np.int32)
    swa_start = 0
    swa_slots = np.empty(0, np.int32)
    mamba = None

    def __init__(self) -> None:
        self.valid = True
        self.finalized = 0

    def validate(self) -> bool:
        return self.valid

    def finalize(self) -> None:
        self.finalized += 1


class Index:
    """Stands for _core.Index: every path is there."""

    incarnation = INCARNATION

    def __init__(self) -> None:
        self.found: list[Found] = []

    def query(self, *_: Any) -> Found:
        self.found.append(Found())
        return self.found[-1]


def request(**other: Any) -> Lease:
    fields = {
        "incarnation": INCARNATION,
        "digest": DIGEST,
        "hashes": np.arange(3, dtype=np.uint64).tobytes(),
        "mask": 1,
        "start": 1,
        "ttl_s": 10.0,
    }
    return Lease(**{**fields, **other})


def leases(index: Index) -> Leases:
    return Leases(index, DIGEST)  # type: ignore[arg-type]


def test_a_lease_is_held_until_its_end() -> None:
    async def steps() -> None:
        index = Index()
        granted = leases(index)
        lease = granted.grant(request())
        assert np.frombuffer(lease.full_slots, np.int32).tolist() == [8, 9]  # from block 1 on
        assert (lease.common_hit, len(granted)) == (3, 1)
        state = granted.end(lease.lease)
        assert (state.held, state.incarnation, index.found[0].finalized) == (True, INCARNATION, 1)
        assert not granted.end(lease.lease).held

    asyncio.run(steps())


@pytest.mark.parametrize("other", [{"incarnation": 12}, {"digest": 23}])
def test_another_life_or_digest_gets_nothing(other: dict[str, int]) -> None:
    async def steps() -> None:
        index = Index()
        assert leases(index).grant(request(**other)) == Leased(lease=0, common_hit=0)
        assert not index.found

    asyncio.run(steps())


def test_a_number_means_nothing_in_another_life() -> None:
    async def steps() -> None:
        old, new = leases(Index()), leases(Index())
        number = old.grant(request()).lease
        new.grant(request())
        assert not new.end(number).held
        assert len(new) == 1

    asyncio.run(steps())


def test_a_reset_meanwhile_is_seen_at_the_end() -> None:
    async def steps() -> None:
        index = Index()
        granted = leases(index)
        number = granted.grant(request()).lease
        index.found[0].valid = False
        assert not granted.end(number).held

    asyncio.run(steps())


def test_a_lease_ends_by_itself() -> None:
    async def steps() -> None:
        index = Index()
        granted = leases(index)
        number = granted.grant(request(ttl_s=0.001)).lease
        end = asyncio.get_running_loop().time() + 20
        while len(granted):
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.001)
        assert (index.found[0].finalized, granted.expired) == (1, 1)
        assert not granted.end(number).held

    asyncio.run(steps())


@pytest.mark.parametrize(
    "other", [{"hashes": b"123"}, {"ttl_s": 0.0}, {"ttl_s": 1e9}, {"start": -1}]
)
def test_nonsense_is_refused(other: dict[str, Any]) -> None:
    async def steps() -> None:
        with pytest.raises(RadixError, match="makes no sense"):
            leases(Index()).grant(request(**other))

    asyncio.run(steps())


def test_leases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "_MAX_LEASES", 1)

    async def steps() -> None:
        index = Index()
        granted = leases(index)
        granted.grant(request())
        with pytest.raises(RadixError, match="ask another peer"):
            granted.grant(request())
        granted.close()
        assert (len(granted), index.found[0].finalized) == (0, 1)

    asyncio.run(steps())
