# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""How a server goes from one placement to the next, beside made-up peers."""

from __future__ import annotations

import asyncio
import functools
import unittest.mock
from collections.abc import Awaitable, Callable
from typing import Any

from radixshmem_core.cluster.placement import Participant, Placement
from radixshmem_core.cluster.placing import Placing
from radixshmem_core.cluster.wire import Description
from radixshmem_core.config import ServerConfig

_DEADLINE_S = 10.0


def in_a_loop(steps: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @functools.wraps(steps)
    def test() -> None:
        asyncio.run(asyncio.wait_for(steps(), 4 * _DEADLINE_S))

    return test


class Table:
    def __init__(self) -> None:
        self.maps = 0

    def set_shard_map(self, _: bytes) -> None:
        self.maps += 1


class Publication:
    """Notes what it is told; all arrives at once."""

    def __init__(self) -> None:
        self.placed: list[tuple[int, set[int]]] = []  # number of maps, who is written to

    async def place(self, maps: list[bytes], living: dict[int, int], delay_s: float) -> None:
        self.placed.append((len(maps), set(living)))

    async def served(self, timeout_s: float) -> bool:
        return True


class Rig:
    def __init__(self) -> None:
        self.peers: dict[int, Description] = {}
        self.table, self.publication = Table(), Publication()
        parts: Any = (self.table, self.publication)
        self.placing = Placing(
            ServerConfig("/placing", index_slots=1, settle_ms=1),
            asyncio.to_thread,
            Participant(0, 100, 64, warming=True),
            lambda: list(self.peers.values()),
            *parts,
            lambda: None,
        )

    def says(self, rank: int, **fields: Any) -> None:
        said = {
            "version": "",
            "node": f"n{rank}",
            "rank": rank,
            "instance": rank,
            "mode": "ready",
            "incarnation": 100 + rank,
            "layout": {"directory_lines": 64},
        }
        self.peers[rank] = Description(**{**said, **fields})
        self.placing.peers_changed()

    async def until(self, done: Any) -> None:
        end = asyncio.get_running_loop().time() + _DEADLINE_S
        while not done():
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.002)

    async def settled(self) -> None:
        """Alone, and written to by nobody else's map."""
        self.placing.peers_changed()
        await self.until(lambda: self.placing.served)
        self.placing.peers_changed()
        assert not self.placing.warming


@in_a_loop
async def test_news_that_come_at_once_place_once() -> None:
    rig = Rig()
    for _ in range(3):
        rig.placing.peers_changed()
    await rig.until(lambda: rig.placing.served)
    assert rig.publication.placed == [(1, {0})]
    await rig.placing.close()


@in_a_loop
async def test_the_former_map_is_written_to_until_all_read_by_the_new_one() -> None:
    rig = Rig()
    await rig.settled()
    alone = rig.placing.reads
    rig.says(1, reads=12345)
    await rig.until(lambda: rig.placing.reads != alone)
    await rig.until(lambda: rig.publication.placed[-1] == (2, {0, 1}))
    rig.says(1, reads=rig.placing.reads)
    await rig.until(lambda: rig.publication.placed[-1] == (1, {0, 1}))
    await rig.placing.close()


@in_a_loop
async def test_who_reads_by_an_older_map_is_written_to_through_several_changes() -> None:
    """As where several nodes join one after another, and one hears of nothing yet."""
    rig = Rig()
    await rig.settled()
    alone = rig.placing.reads
    for joined in range(1, 6):
        rig.says(joined, reads=alone)
        await rig.until(lambda n=joined: rig.placing.read_members == n + 1)
        written_to = (1 + min(joined, 3), set(range(joined + 1)))
        await rig.until(lambda w=written_to: rig.publication.placed[-1] == w)
    for rank in rig.peers:
        rig.says(rank, reads=rig.placing.reads)
    await rig.until(lambda: rig.publication.placed[-1][0] == 1)
    await rig.placing.close()


@in_a_loop
async def test_a_peer_that_is_not_heard_for_a_moment_is_written_to_as_long_as_it_keeps() -> None:
    """It answers again before its silence is placed: then nothing is placed anew."""
    rig = Rig()
    await rig.settled()
    make = Placement.make

    def make_in_silence(placement: Placement) -> None:
        silent.update(rig.peers)
        rig.peers.clear()
        make(placement)

    silent: dict[int, Description] = {}
    with unittest.mock.patch.object(Placement, "make", make_in_silence):
        rig.says(1)
        await rig.until(lambda: rig.placing.read_members == 2)
    rig.peers.update(silent)
    await rig.until(lambda: len(rig.publication.placed) == 2)
    assert rig.publication.placed[-1][1] == {0, 1}
    await rig.placing.close()


@in_a_loop
async def test_a_warming_peer_is_written_to_and_not_read() -> None:
    rig = Rig()
    await rig.settled()
    alone = rig.placing.reads
    rig.says(1, warming=True, reads=alone)
    await rig.until(lambda: rig.publication.placed[-1] == (2, {0, 1}))
    assert rig.placing.reads == alone
    assert rig.table.maps == 1
    await rig.placing.close()


@in_a_loop
async def test_a_draining_peer_is_written_to_while_it_is_read() -> None:
    rig = Rig()
    await rig.settled()
    rig.says(1)
    await rig.until(lambda: rig.placing.read_members == 2)
    rig.says(1, draining=True)
    await rig.until(lambda: rig.placing.read_members == 1)
    await rig.until(lambda: rig.publication.placed[-1] == (2, {0, 1}))
    rig.says(1, draining=True, reads=rig.placing.reads)
    await rig.until(lambda: rig.publication.placed[-1] == (1, {0, 1}))
    await rig.placing.close()


@in_a_loop
async def test_who_withdraws_keeps_nothing() -> None:
    rig = Rig()
    await rig.settled()
    rig.says(1)
    await rig.until(lambda: rig.placing.read_members == 2)
    rig.placing.withdraw()
    await rig.until(lambda: rig.placing.read_members == 1)
    await rig.placing.close()
