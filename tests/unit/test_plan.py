# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import pytest

from radixshmem_core.config import ServerConfig
from radixshmem_core.plan import plan_slots, ring_entries
from radixshmem_core.values import ComponentType, Geometry

HYBRID = Geometry(
    16, 30000, swa_slot_bytes=1000, swa_window_blocks=8, mamba_slot_bytes=5000, slot_align=1024
)


def test_full_pool_takes_the_whole_budget() -> None:
    plan = plan_slots(ServerConfig("/x", data_bytes="64M"), Geometry(16, 32768, slot_align=1024))
    assert plan.full.num_slots == (64 << 20) // 32768
    assert (plan.swa, plan.mamba) == (None, None)
    assert plan.geometry_dict() == {
        "block_size": 16,
        "slot_align": 1024,
        "register_chunk_tokens": 4096,
        "pools": {"full": {"slot_bytes": 32768, "num_slots": 2048}},
    }


def test_three_pools_share_the_budget() -> None:
    budget = 100_000_001
    config = ServerConfig("/x", data_bytes=budget, swa_ratio=0.2, mamba_ratio=0.1)
    plan = plan_slots(config, HYBRID)
    swa_bytes, mamba_bytes = round(0.2 * budget), round(0.1 * budget)
    assert plan.swa is not None
    assert plan.mamba is not None
    assert (plan.swa.stride_bytes, plan.swa.num_slots) == (1024, swa_bytes // 1024)
    assert (plan.mamba.stride_bytes, plan.mamba.num_slots) == (5120, mamba_bytes // 5120)
    assert plan.full.stride_bytes == 30720
    assert plan.full.num_slots == (budget - swa_bytes - mamba_bytes) // 30720
    assert plan.full.slot_bytes == 30000  # published without padding


def test_shares_are_rounded_to_the_nearest_byte() -> None:
    assert int(0.29 * 5700) == 1652  # cut off, the pool would lose its last slot
    config = ServerConfig("/x", data_bytes=5700, swa_ratio=0.29, slot_align=1)
    plan = plan_slots(config, Geometry(16, 1, swa_slot_bytes=1653, swa_window_blocks=1))
    assert plan.swa is not None
    assert (plan.swa.num_slots, plan.full.num_slots) == (1, 4047)


def test_zeros_of_a_geometry_become_the_servers_values() -> None:
    config = ServerConfig("/x", data_bytes="1M", slot_align=8192, register_chunk_tokens=512)
    plan = plan_slots(config, Geometry(16, 100))
    assert (plan.geometry.slot_align, plan.geometry.register_chunk_tokens) == (8192, 512)
    assert plan.full.num_slots == 128


def test_slot_align_of_one_is_legal() -> None:
    plan = plan_slots(ServerConfig("/x", data_bytes=10_000), Geometry(16, 1001, slot_align=1))
    assert (plan.full.stride_bytes, plan.full.num_slots) == (1001, 9)


def test_ratio_of_an_absent_pool_is_not_taken_from_the_budget() -> None:
    config = ServerConfig("/x", data_bytes="1M", swa_ratio=0.5)
    assert plan_slots(config, Geometry(16, 4096)).full.num_slots == 256


def test_budget_too_small_names_the_numbers() -> None:
    config = ServerConfig("/x", data_bytes=8192)
    with pytest.raises(ValueError, match=r"10000 bytes takes 12288 bytes .*8192 .*--data-bytes$"):
        plan_slots(config, Geometry(16, 10000))


def test_pool_with_ratio_zero_names_the_option() -> None:
    config = ServerConfig("/x", data_bytes="1M", mamba_ratio=0.1)
    with pytest.raises(ValueError, match=r"SWA slots of 1000 bytes.*--swa-ratio"):
        plan_slots(config, HYBRID)


def test_share_too_small_for_one_slot_names_the_numbers() -> None:
    config = ServerConfig("/x", data_bytes="1M", swa_ratio=0.1, mamba_ratio=0.001)
    with pytest.raises(
        ValueError, match=r"no MAMBA.*5000.*5120.*1049 of the 1048576.* --mamba-ratio$"
    ):
        plan_slots(config, HYBRID)


def test_index_only_counts_slots() -> None:
    config = ServerConfig("/x", index_slots=1000, swa_ratio=0.5, mamba_ratio=0.1)
    plan = plan_slots(config, HYBRID)
    assert not plan.has_store
    counts = {kind: pool.num_slots for kind, pool in plan.pools.items()}
    assert counts == {ComponentType.FULL: 1000, ComponentType.SWA: 500, ComponentType.MAMBA: 100}


@pytest.mark.parametrize(
    ("asked", "entries"), [(0, 65536), (1, 1024), (1024, 1024), (5000, 8192), (70000, 131072)]
)
def test_ring_is_a_power_of_two(asked: int, entries: int) -> None:
    config = ServerConfig("/x", data_bytes="1M", kvevent_ring_capacity=asked)
    assert ring_entries(config) == entries
