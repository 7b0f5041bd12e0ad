# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Lookups and loads of the manager over a real server, without an engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, make_offload_key

from radixshmem import ComponentType, Geometry, QueryResult, RadixClient
from radixshmem.integrations.vllm_offload.groups import GroupShape, map_groups
from radixshmem.integrations.vllm_offload.manager import RadixShmemManager
from radixshmem.integrations.vllm_offload.transfer import SlotSpec
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

FULL, SWA, MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA
WINDOW, WHOLE, STATE = range(3)
BLOCK = 16
GROUPS = map_groups(
    [
        GroupShape("SlidingWindowSpec", SWA, 2 * BLOCK),
        GroupShape("FullAttentionSpec", FULL),
        GroupShape("MambaSpec", MAMBA),
    ],
    BLOCK,
)
HASHES = [hashlib.sha256(f"{i}".encode()).digest() for i in range(8)]


@pytest.fixture
def manager(region_name: str) -> Iterator[RadixShmemManager]:
    config = ServerConfig(region_name, data_bytes="1M", swa_ratio=0.3, mamba_ratio=0.3)
    geometry = Geometry(
        BLOCK, 4096, swa_slot_bytes=4096, swa_window_blocks=2, mamba_slot_bytes=4096
    )
    with RadixServer(config), RadixClient(region_name, geometry) as client:
        client.wait_ready(10)
        yield RadixShmemManager(client, GROUPS, BLOCK, 1, 1000)


def begin(manager: RadixShmemManager, request_id: str, hashes: list[bytes]) -> ReqContext:
    context = ReqContext(request_id)
    manager.offer(request_id, hashes)
    manager.on_new_request(context)
    manager.begin_round(request_id, len(hashes) * BLOCK + 1)
    return context


def keys_of(group: int, first: int, end: int) -> list[OffloadKey]:
    return [make_offload_key(h, group) for h in HASHES[first:end]]


def store_first_six(manager: RadixShmemManager) -> None:
    context = begin(manager, "store", HASHES[:6])
    keys = [*keys_of(WINDOW, 4, 6), *keys_of(WHOLE, 0, 6), *keys_of(STATE, 5, 6)]
    output = manager.prepare_store(keys, context)
    assert output is not None
    assert output.keys_to_store == keys
    manager.complete_store(set(keys), context)
    manager.on_request_finished(context)


def test_a_round_finds_what_each_pool_holds(manager: RadixShmemManager) -> None:
    store_first_six(manager)
    context = begin(manager, "load", HASHES)

    def found(group: int) -> list[int]:
        hit = LookupResult.HIT
        return [
            i for i, key in enumerate(keys_of(group, 0, 8)) if manager.lookup(key, context) is hit
        ]

    assert found(WHOLE) == [0, 1, 2, 3, 4, 5]
    assert found(WINDOW) == [4, 5]
    assert found(STATE) == [5]
    manager.on_request_finished(context)


def test_a_load_names_the_slot_of_each_key(manager: RadixShmemManager) -> None:
    store_first_six(manager)
    context = begin(manager, "load", HASHES)
    keys = [*keys_of(WINDOW, 4, 6), *keys_of(WHOLE, 2, 6), *keys_of(STATE, 5, 6)]
    assert {manager.lookup(key, context) for key in keys} == {LookupResult.HIT}
    spec = manager.prepare_load(keys, context)
    assert isinstance(spec, SlotSpec)
    client = manager._client
    stored = client.query([int.from_bytes(h[:8], "little") for h in HASHES[:6]], 7)
    assert stored.mamba is not None
    want = [*stored.swa_slots, *stored.full_slots[2:], stored.mamba[1]]
    assert spec.slots.tolist() == want
    manager.complete_load(set(keys), context)
    manager.on_request_finished(context)
    assert client.index._index.pins() == []


def test_a_round_makes_one_query(
    manager: RadixShmemManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_first_six(manager)
    context = begin(manager, "load", HASHES)
    query = manager._client.query
    asked: list[object] = []

    def counted(*args: Any, **options: Any) -> QueryResult:
        asked.append(args)
        return query(*args, **options)

    monkeypatch.setattr(manager._client, "query", counted)
    for _ in range(2):
        for key in keys_of(WHOLE, 0, 8):
            manager.lookup(key, context)
        assert len(asked) == 1
    manager.begin_round("load", len(HASHES) * BLOCK + 1)
    manager.lookup(keys_of(WHOLE, 0, 1)[0], context)
    assert len(asked) == 2
    manager.on_request_finished(context)


def test_a_reset_during_a_load_leaves_no_hit(manager: RadixShmemManager) -> None:
    store_first_six(manager)
    context = begin(manager, "load", HASHES)
    keys = keys_of(WHOLE, 0, 6)
    assert manager.lookup(keys[0], context) is LookupResult.HIT
    manager.prepare_load(keys, context)
    manager.reset_cache()
    assert manager.lookup(keys[0], context) is LookupResult.MISS
