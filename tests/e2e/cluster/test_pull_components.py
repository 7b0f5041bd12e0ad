# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Windows and checkpoints are pulled with the blocks that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from e2e.cluster.nodes import FULL, MAMBA, SWA, Cluster, Hashes, Node, cluster
from e2e.harness import path_hashes

from radixshmem_core.pull import PullResult
from radixshmem_core.values import (
    COMPONENT_MASK_FULL,
    COMPONENT_MASK_MAMBA,
    COMPONENT_MASK_SWA,
    Geometry,
)

WINDOW = 8
GEOMETRY = Geometry(
    16,
    4000,
    slot_align=4096,
    swa_slot_bytes=1000,
    swa_window_blocks=WINDOW,
    mamba_slot_bytes=3000,
)
MASKS = {
    "swa": COMPONENT_MASK_FULL | COMPONENT_MASK_SWA,
    "mamba": COMPONENT_MASK_FULL | COMPONENT_MASK_MAMBA,
    "both": COMPONENT_MASK_FULL | COMPONENT_MASK_SWA | COMPONENT_MASK_MAMBA,
}


@pytest.fixture
def pair(region_name: str, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(region_name, tmp_path) as made:
        for number in range(2):
            made.start(number, GEOMETRY, data_bytes="2M", swa_ratio=0.2, mamba_ratio=0.2)
        made.settle()
        yield made


def put(node: Node, hashes: Hashes, mask: int, start: int = 0) -> None:
    """A path, with a window and a checkpoint at its end."""
    node.insert(hashes, start)
    for component in (SWA, MAMBA):
        if mask & 1 << component:
            node.put_aux(hashes, component)


def check(node: Node, path: Hashes, result: PullResult, mask: int) -> None:
    """All bytes of the answer are those of this path."""
    hit = result.common_hit
    assert node.wrong(path[:hit], result.full_slots) == 0
    if mask & COMPONENT_MASK_SWA:
        start = max(0, hit - WINDOW)
        assert (result.swa_start, len(result.swa_slots)) == (start, hit - start)
        assert node.wrong(path[start:hit], result.swa_slots, SWA) == 0
    if mask & COMPONENT_MASK_MAMBA:
        assert result.mamba is not None
        slots = np.array([result.mamba[1]], np.int32)
        assert node.wrong(path[hit - 1 : hit], slots, MAMBA) == 0


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_path_comes_with_its_window_and_its_checkpoint(pair: Cluster, mask: int) -> None:
    a, b = pair.nodes
    path = path_hashes(60)
    put(a, path[:50], mask)
    a.insert(path, 50)  # FULL alone: it ends the hit of no mask here
    a.flush()
    assert b.client.query(path, mask).common_hit == 50
    result = b.client.pull_async(path, mask).wait(20)
    assert (result.common_hit, result.remote_blocks, result.source_rank) == (50, 50, a.rank)
    check(b, path, result, mask)
    result.finalize()
    local = b.client.query(path, mask, local_only=True)
    assert local.common_hit == 50


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_blocks_that_are_here_are_not_fetched_again(pair: Cluster, mask: int) -> None:
    """The local hit of the mask is 20; of FULL it is 33."""
    a, b = pair.nodes
    path = path_hashes(50)
    put(a, path, mask)
    put(b, path[:20], mask)
    b.insert(path[:33], 20)
    a.flush()
    job = b.client.pull_async(path, mask)
    assert job.local_hit == 20
    result = job.wait(20)
    assert (result.common_hit, result.remote_blocks) == (50, 17)
    check(b, path, result, mask)
    result.finalize()


@pytest.mark.parametrize("mask", [COMPONENT_MASK_SWA, COMPONENT_MASK_MAMBA, 6])
def test_a_mask_without_full_brings_the_full_blocks_too(pair: Cluster, mask: int) -> None:
    a, b = pair.nodes
    path = path_hashes(30)
    put(a, path, mask)
    a.flush()
    result = b.client.pull_async(path, mask).wait(20)
    assert result.common_hit == 30
    result.finalize()
    full = b.client.query(path, local_only=True, lock=True)
    assert (full.common_hit, b.wrong(path, full.full_slots, FULL)) == (30, 0)
    full.finalize()


def test_a_window_that_does_not_fit_is_not_half_pulled(pair: Cluster) -> None:
    a, b = pair.nodes
    path = path_hashes(40)
    put(a, path, MASKS["swa"])
    a.flush()
    total = b.client.swa_mempool_total()
    kept = b.client.allocate_slots(total - WINDOW + 1, SWA)
    result = b.client.pull_async(path, MASKS["swa"]).wait(20)
    assert (result.common_hit, result.remote_blocks) == (0, 0)
    assert b.client.staging_shortfalls == 1
    b.client.recycle_slots(kept, SWA)
    result = b.client.pull_async(path, MASKS["swa"]).wait(20)
    assert result.common_hit == 40
    check(b, path, result, MASKS["swa"])
    result.finalize()
