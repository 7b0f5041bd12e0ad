# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The pools of a SlotStore and the views into them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from unit.stores import FULL, MAMBA, SWA, store_config

from radixshmem_core.store import SlotPoolConfig, SlotStore, SlotStoreConfig
from radixshmem_core.values import ComponentType


def test_describes_its_pools(store: SlotStore, region_name: str) -> None:
    assert store.name == region_name
    assert store.pool_mask == 1 | 4
    assert store.is_hugepage is False
    assert store.read_only is False
    assert store.nonce == 2**63 + 5
    assert store.pool(FULL) == SlotPoolConfig(10, 1024)
    assert store.pool(MAMBA) == SlotPoolConfig(3, 5120)
    assert store.data_bytes == len(store.data_view()) == 10 * 1024 + 3 * 5120
    assert store.slot_offset(9) == 9 * 1024
    assert store.slot_offset(2, MAMBA) == 10 * 1024 + 2 * 5120


def test_fresh_slots_read_as_zeros(store: SlotStore) -> None:
    assert store.read_slot(9) == bytes(1024)
    assert bytes(store.data_view()) == bytes(store.data_bytes)


@pytest.mark.parametrize("kind", [FULL, MAMBA])
def test_slot_view_is_a_writable_stride_of_bytes(store: SlotStore, kind: ComponentType) -> None:
    view = store.slot_view(1, kind)
    assert (view.ndim, view.format, view.itemsize, view.readonly) == (1, "B", 1, False)
    assert view.c_contiguous
    assert len(view) == store.pool(kind).slot_bytes
    view[:3] = b"abc"
    offset = store.slot_offset(1, kind)
    assert bytes(store.data_view()[offset : offset + 3]) == b"abc"
    in_pool = store.pool(kind).slot_bytes
    assert bytes(store.pool_view(kind)[in_pool : in_pool + 3]) == b"abc"
    assert store.read_slot(1, kind) == b"abc" + bytes(len(view) - 3)


def test_numpy_uses_a_view_in_place(store: SlotStore) -> None:
    array = np.frombuffer(store.slot_view(3)[:1000], dtype=np.float32)
    array[:] = 1.5
    assert np.frombuffer(store.read_slot(3), dtype=np.float32)[:250].tolist() == [1.5] * 250


class PlainEnum(enum.Enum):
    ANY = 2


class OtherIntEnum(enum.IntEnum):
    ANY = 2


@pytest.mark.parametrize("kind", [2, MAMBA, PlainEnum.ANY, OtherIntEnum.ANY, np.int64(2)])
def test_a_kind_is_anything_that_stands_for_an_int(store: SlotStore, kind: Any) -> None:
    store.write_slot(0, b"m", kind)
    assert bytes(store.slot_view(0, kind)[:1]) == b"m"
    assert store.read_slot(0, kind)[:1] == b"m"
    assert len(store.pool_view(kind)) == 3 * 5120
    assert store.slot_offset(0, kind) == 10 * 1024
    assert store.copy_in([], [], [], kind=kind) == 0
    assert store.read_slot(0)[:1] == b"\0"


def test_slot_align_of_one_packs_slots(region_name: str) -> None:
    with SlotStore.create(
        store_config(region_name, slot_align=1, swa=SlotPoolConfig(7, 3))
    ) as store:
        assert store.pool(SWA) == SlotPoolConfig(7, 3)
        assert store.slot_offset(1, SWA) == 10 * 1000 + 3
        store.write_slot(1, b"abc", SWA)
        assert bytes(store.pool_view(SWA)) == bytes(3) + b"abc" + bytes(15)
        assert store.slot_offset(0, MAMBA) == 10 * 1000 + 21
    SlotStore.destroy(region_name)


def test_prefault_reports_progress_and_changes_no_byte(region_name: str) -> None:
    pool = SlotPoolConfig(150, 1 << 20)
    with SlotStore.create(SlotStoreConfig(region_name, full=pool, prefault=False)) as store:
        SlotStore.destroy(region_name)
        store.write_slot(0, b"first")
        store.write_slot(149, b"last")
        seen: list[tuple[int, int]] = []
        store.prefault(threads=3, on_progress=lambda done, total: seen.append((done, total)))
        assert [done for done, _ in seen] == sorted({done for done, _ in seen})
        assert len(seen) > 1
        assert seen[-1] == (150 << 20, 150 << 20)
        assert store.read_slot(0)[:6] == b"first\0"
        assert store.read_slot(149)[:5] == b"last\0"


class Cancelled(Exception):
    pass


def test_prefault_ends_when_its_callback_raises(store: SlotStore) -> None:
    def stop(done: int, total: int) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        store.prefault(on_progress=stop)
    store.prefault(1)


def test_views_that_are_gone_are_forgotten(store: SlotStore) -> None:
    kept = [store.slot_view(i % 10) for i in range(3000)]
    for _ in range(20_000):
        store.slot_view(0)
    assert len(store._views) < 10_000
    store.close()
    for view in kept:
        with pytest.raises(ValueError, match="released"):
            len(view)


def test_reading_side_sees_writes(store: SlotStore, reader: SlotStore) -> None:
    view = reader.slot_view(6)
    store.write_slot(6, b"news")
    assert bytes(view[:4]) == b"news"
    target = np.zeros(4, np.uint8)
    assert reader.copy_out([6], [target.ctypes.data], [4]) == 4
    assert target.tobytes() == b"news"


@pytest.mark.parametrize("slot", [-1, 10, 2**31, -(2**31), 2**70, np.int32(-1)])
def test_a_slot_out_of_range_is_an_index_error(store: SlotStore, slot: int) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.slot_view(slot),
        lambda: store.slot_offset(slot),
        lambda: store.read_slot(slot),
        lambda: store.write_slot(slot, b""),
    ]
    for call in calls:
        with pytest.raises(IndexError, match=rf"slot {int(slot)} .*FULL pool.*slots 0 to 9"):
            call()


@pytest.mark.parametrize("kind", [SWA, 1, 3, -1, None, "0", PlainEnum])
def test_a_pool_that_is_not_there_is_a_value_error(store: SlotStore, kind: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.slot_view(0, kind),
        lambda: store.slot_offset(0, kind),
        lambda: store.pool(kind),
        lambda: store.pool_view(kind),
        lambda: store.read_slot(0, kind),
        lambda: store.write_slot(0, b"", kind),
        lambda: store.copy_in([], [], [], kind=kind),
        lambda: store.copy_out([], [], [], kind=kind),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"no SWA pool|is no component"):
            call()


def test_a_read_only_store_cannot_be_written(reader: SlotStore) -> None:
    assert reader.read_only is True
    for view in (reader.slot_view(0), reader.data_view(), reader.pool_view(MAMBA)):
        assert view.readonly
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1
    array = np.frombuffer(reader.slot_view(0), np.uint8)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        reader.write_slot(0, b"x")
    with pytest.raises(ValueError, match="read-only"):
        reader.copy_in([0], [array.ctypes.data], [1])
    with pytest.raises(ValueError, match="read-only"):
        reader.prefault()
    assert reader.read_slot(0) == bytes(1024)
