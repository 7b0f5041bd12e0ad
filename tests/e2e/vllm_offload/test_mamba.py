# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Mamba states, which no CPU computes: the manager as vLLM's scheduler calls it in align mode.

There each group hands over the state at one boundary in a call of its own, before the blocks of
full attention of the same step, and only the last state of a prompt is looked up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from e2e.vllm_offload.contracts import FULL, MAMBA
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)

from radixshmem import ComponentType, Geometry, RadixClient
from radixshmem.integrations.vllm_offload.groups import GroupShape, map_groups
from radixshmem.integrations.vllm_offload.manager import RadixShmemManager
from radixshmem.integrations.vllm_offload.transfer import SlotSpec
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

BLOCK = 32
PER_BLOCK = 2  # hashes: a boundary may lie in the middle of a block
GROUPS = map_groups([GroupShape(*FULL), GroupShape(*MAMBA), GroupShape(*MAMBA)], BLOCK)
WHOLE, FIRST, SECOND = range(3)
HASHES = [hashlib.sha256(f"mamba {i}".encode()).digest() for i in range(8 * PER_BLOCK)]


@pytest.fixture
def manager(region_name: str) -> Iterator[RadixShmemManager]:
    config = ServerConfig(region_name, data_bytes="1M", mamba_ratio=0.5)
    geometry = Geometry(BLOCK, 4096, mamba_slot_bytes=4096)
    with RadixServer(config), RadixClient(region_name, geometry) as client:
        client.wait_ready(10)
        manager = RadixShmemManager(client, GROUPS, BLOCK, PER_BLOCK, 1000)
        yield manager
        assert manager.stores.empty
        assert _used(client) == [client.total_blocks(), _states(client)], "nothing leaked"


def _used(client: RadixClient) -> list[int]:
    """Slots that are not free, of blocks and of states."""
    index = client.index._index
    kinds = (ComponentType.FULL, ComponentType.MAMBA)
    return [index.slots_total(kind) - index.slots_free(kind) for kind in kinds]


def _states(client: RadixClient) -> int:
    with RadixClient(client.name, read_only=True) as other:
        words = [int.from_bytes(h[:8], "little") for h in HASHES[PER_BLOCK - 1 :: PER_BLOCK]]
        return sum(
            other.query(words[:end], 5, local_only=True, update_meta=False).common_hit == end
            for end in range(1, 9)
        )


def _key(group: int, block: int) -> OffloadKey:
    return make_offload_key(HASHES[(block + 1) * PER_BLOCK - 1], group)


def _begin(manager: RadixShmemManager, request: str, blocks: int) -> ReqContext:
    context = ReqContext(request)
    manager.offer(request, HASHES[: blocks * PER_BLOCK])
    manager.on_new_request(context)
    manager.begin_round(request, blocks * BLOCK + 1)
    return context


def _prepare(manager: RadixShmemManager, context: ReqContext, *keys: OffloadKey) -> list[int]:
    """The slots that are to be written, for all of the keys or for none."""
    output = manager.prepare_store(list(keys), context)
    assert isinstance(output, PrepareStoreOutput)
    assert isinstance(output.store_spec, SlotSpec)
    assert output.keys_to_store in ([], list(keys))
    return output.store_spec.slots.tolist()


def _store(manager: RadixShmemManager, blocks: int, *boundaries: int) -> None:
    """As one step does: states first, each a job of its own, then the blocks."""
    context = _begin(manager, f"store{blocks}", blocks)
    jobs = []
    for boundary in boundaries:
        for group in (FIRST, SECOND):
            if _prepare(manager, context, _key(group, boundary)):
                jobs.append([_key(group, boundary)])
    whole = [_key(WHOLE, i) for i in range(blocks)]
    output = manager.prepare_store(whole, context)
    assert output is not None
    jobs.append(output.keys_to_store)
    _end_step(manager)
    for job in jobs:
        manager.complete_store(set(job), context)
    manager.on_request_finished(context)


def _end_step(manager: RadixShmemManager) -> None:
    manager.on_schedule_end(ScheduleEndContext((), ()))


def _last_state(manager: RadixShmemManager, request: str, blocks: int) -> int | None:
    """The boundary that vLLM would go on from: the last one that every group has."""
    context = _begin(manager, request, blocks)
    for boundary in reversed(range(blocks)):
        keys = [_key(group, boundary) for group in (WHOLE, FIRST, SECOND)]
        if all(manager.lookup(key, context) is LookupResult.HIT for key in keys):
            load = manager.prepare_load(
                [*(_key(WHOLE, i) for i in range(boundary + 1)), *keys[1:]], context
            )
            assert isinstance(load, SlotSpec)
            assert len(set(load.slots[:-2].tolist())) == boundary + 1
            assert load.slots[-1] == load.slots[-2], "all groups of a state are in one slot"
            manager.complete_load(set(keys), context)
            manager.on_request_finished(context)
            return boundary
    manager.on_request_finished(context)
    return None


def test_the_last_state_of_a_prompt_is_found(manager: RadixShmemManager) -> None:
    _store(manager, 6, 2, 5)
    assert _last_state(manager, "same", 8) == 5
    assert _last_state(manager, "shorter", 5) == 2
    assert _last_state(manager, "too short", 2) is None


def test_groups_that_come_one_by_one_share_a_slot(manager: RadixShmemManager) -> None:
    context = _begin(manager, "r", 3)
    first = _prepare(manager, context, _key(FIRST, 2))
    assert len(first) == 1
    assert _prepare(manager, context, _key(FIRST, 2)) == [], "it is being stored"
    assert _prepare(manager, context, _key(SECOND, 2)) == first
    assert _prepare(manager, context, _key(SECOND, 2)) == []
    assert len(_prepare(manager, context, *(_key(WHOLE, i) for i in range(3)))) == 3
    _end_step(manager)
    manager.complete_store({_key(WHOLE, i) for i in range(3)}, context)
    manager.complete_store({_key(FIRST, 2)}, context)
    assert manager.lookup(_key(FIRST, 2), _begin(manager, "other", 4)) is LookupResult.HIT_PENDING
    manager.complete_store({_key(SECOND, 2)}, context)
    assert _last_state(manager, "load", 4) == 2
    assert _prepare(manager, context, _key(FIRST, 2)) == [], "it is there"


def test_a_state_is_held_until_its_blocks_are_there(manager: RadixShmemManager) -> None:
    context = _begin(manager, "r", 3)
    for group in (FIRST, SECOND):
        _prepare(manager, context, _key(group, 2))
    _prepare(manager, context, *(_key(WHOLE, i) for i in range(3)))
    _end_step(manager)
    manager.complete_store({_key(FIRST, 2)}, context)
    manager.complete_store({_key(SECOND, 2)}, context)
    assert _last_state(manager, "early", 4) is None
    manager.complete_store({_key(WHOLE, i) for i in range(3)}, context)
    assert _last_state(manager, "late", 4) == 2


@pytest.mark.parametrize("reported_first", [True, False])
def test_a_state_that_lacks_a_group_is_never_found(
    manager: RadixShmemManager, reported_first: bool
) -> None:
    context = _begin(manager, "r", 3)
    _prepare(manager, context, *(_key(WHOLE, i) for i in range(3)))
    manager.complete_store({_key(WHOLE, i) for i in range(3)}, context)
    assert len(_prepare(manager, context, _key(FIRST, 2))) == 1
    if reported_first:
        manager.complete_store({_key(FIRST, 2)}, context)
        _end_step(manager)
    else:
        _end_step(manager)
        manager.complete_store({_key(FIRST, 2)}, context)
    assert manager._client.mempool_used() == 3
    assert _last_state(manager, "load", 4) is None


def test_a_part_that_fails_spoils_the_state(manager: RadixShmemManager) -> None:
    context = _begin(manager, "r", 3)
    _prepare(manager, context, *(_key(WHOLE, i) for i in range(3)))
    (slot,) = _prepare(manager, context, _key(FIRST, 2))
    _prepare(manager, context, _key(SECOND, 2))
    _end_step(manager)
    manager.complete_store({_key(WHOLE, i) for i in range(3)}, context)
    manager.note_failures({(int(ComponentType.MAMBA), slot)}, ())
    manager.complete_store({_key(FIRST, 2)}, context)
    manager.complete_store({_key(SECOND, 2)}, context)
    assert _last_state(manager, "load", 4) is None
    assert manager.figures.failed_stores == 1


def test_boundaries_within_a_block_are_not_stored(manager: RadixShmemManager) -> None:
    context = _begin(manager, "r", 3)
    part = [make_offload_key(HASHES[2 * PER_BLOCK], group) for group in (WHOLE, FIRST, SECOND)]
    assert [manager.lookup(key, context) for key in part] == [LookupResult.MISS] * 3
    assert _prepare(manager, context, *part) == []


def test_a_reset_forgets_a_state_that_is_half_there(manager: RadixShmemManager) -> None:
    context = _begin(manager, "r", 3)
    assert len(_prepare(manager, context, _key(FIRST, 2))) == 1
    manager.reset_cache()
    for _ in range(3):
        _end_step(manager)
    assert _used(manager._client) == [0, 0]
