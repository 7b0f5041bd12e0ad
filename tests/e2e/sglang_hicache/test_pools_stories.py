# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Random trees of nodes, of which some have last pages of windows and Mamba states.

SGLang's own backend of files says what can be restored after the same nodes were stored in both.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.harness import eventually
from e2e.sglang_hicache.controllers import Fetched, Rank, tokens
from e2e.sglang_hicache.pools import PAGE, SWA, TRAILING, Sidecar, ends, host_group
from sglang.srt.mem_cache.hicache_storage import PoolName

from radixshmem import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

Start = Callable[..., Rank]


class Story:
    """Nodes of a random tree, each after those before it, and lookups of paths in it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._nodes: list[tuple[list[int], int]] = [([], 0)]
        self._branches = 0

    def node(self) -> tuple[list[int], int, dict[PoolName, int]]:
        """A path, from which page on it is to be stored, and how many last pages it has."""
        chance = self._random
        if chance.random() < 0.2 and len(self._nodes) > 1:
            path, start = chance.choice(self._nodes[1:])  # again, with other last pages
        else:
            before, _ = chance.choice(self._nodes)
            start = len(before) // PAGE
            self._branches += 1
            path = before + tokens(chance.randint(1, 6), seed=self._branches)
            self._nodes.append((path, start))
        pages = len(path) // PAGE - start
        trailing = {
            PoolName.SWA: chance.choice([0, min(2, pages), min(SWA.window_pages, pages), pages]),
            PoolName.MAMBA: chance.choice([0, 1, 1]),
        }
        return path, start, trailing

    def lookup(self) -> tuple[list[int], int]:
        """A path that may be there in part, and the page of it to begin with."""
        path, _ = self._random.choice(self._nodes[1:])
        path = path + tokens(self._random.randint(0, 2), seed=10_000)
        return path, self._random.randrange(len(path) // PAGE)


def compare(mine: Rank, files: Rank, path: list[int], start: int) -> None:
    """What each says of the path, and gets."""
    operations = [rank.query(path, start) for rank in (mine, files)]
    ours, theirs = (operation.pool_storage_result for operation in operations)
    assert ours.restorable_prefix_pages == theirs.restorable_prefix_pages
    assert ours.kv_hit_pages == theirs.kv_hit_pages
    assert operations[0].storage_hit_count == operations[1].storage_hit_count
    known, told = (operation.query_pool_hit_pages for operation in operations)
    assert {name: known.get(name) for name in told} == told
    if theirs.restorable_prefix_pages:  # else files do not look at the other pools
        assert known == told
        fetched = [
            rank.transfer(operation)
            for rank, operation in zip((mine, files), operations, strict=True)
        ]
        assert fetched[0] == fetched[1]


_STORIES = 40 if os.environ.get("RADIX_TEST_FULL") else 4


@TRAILING
@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("seed", range(_STORIES))
def test_the_same_lengths_can_be_restored_as_from_files(
    cache: RadixServer,
    start_rank: Start,
    tmp_path: Path,
    sidecars: tuple[Sidecar, ...],
    seed: int,
) -> None:
    files = Rank(host_group(*sidecars), "file", {}, sidecars=sidecars)
    files.storage.file_path = str(tmp_path)
    try:
        mine, story = start_rank(*sidecars), Story(seed)
        for _ in range(12):
            path, start, trailing = story.node()
            for rank in (mine, files):
                assert rank.store(path, start, trailing=trailing) == len(path) // PAGE - start
            for _ in range(2):
                compare(mine, files, *story.lookup())
    finally:
        files.close()


@TRAILING
@pytest.mark.parametrize("seed", range(_STORIES))
def test_what_is_said_to_be_there_comes_when_slots_are_few(
    region_name: str, start_rank: Start, sidecars: tuple[Sidecar, ...], seed: int
) -> None:
    config = ServerConfig(
        region_name,
        data_bytes="192K",
        slot_align=64,
        swa_ratio=0.2,
        mamba_ratio=0.01,
        background_evict_ratio=0,  # which may take a page between its lookup and its transfer
    )
    with RadixServer(config):
        rank, story = start_rank(*sidecars), Story(seed)
        found = 0
        for _ in range(40):
            path, start, trailing = story.node()
            rank.store(path, start, trailing=trailing)
            for asked, begin in ((path, start), story.lookup()):
                operation = rank.query(asked, begin)
                if hit := operation.storage_hit_count // PAGE:
                    lasts = {name: min(pages, hit) for name, pages in ends(sidecars).items()}
                    assert rank.transfer(operation) == Fetched(hit, hit, lasts)
                    found += 1
        assert found
        rank.close()
        with RadixClient(region_name) as client:
            eventually(
                lambda: client.mempool_used() == client.total_blocks(),
                "each slot is free or in the index",
            )
