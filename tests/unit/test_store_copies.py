# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Bytes in and out of slots: bulk copies and write_slot."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from unit.stores import FULL

from radixshmem_core.store import SlotStore


def test_copy_in_and_out_gather_rows_of_fragments(store: SlotStore) -> None:
    layers = [np.full((4, 100), layer + 1, np.uint8) for layer in range(3)]
    slots = np.array([8, 2, 5, 0], np.int32)
    ptrs = np.array([[layer[i].ctypes.data for layer in layers] for i in range(4)], np.uint64)
    sizes = np.array([100, 50, 7], np.uint64)
    assert store.copy_in(slots, ptrs.ravel(), sizes, offset=3) == 4 * 157
    expected = bytes(3) + b"\1" * 100 + b"\2" * 50 + b"\3" * 7
    for slot in slots:
        assert store.read_slot(slot) == expected + bytes(1024 - len(expected))
    for layer in layers:
        layer[:] = 0
    every_size = np.tile(sizes, 4)
    assert store.copy_out(slots.astype(np.int64), ptrs.ravel(), every_size, offset=3) == 4 * 157
    assert [int(layer.sum()) for layer in layers] == [400, 4 * 2 * 50, 4 * 3 * 7]


def test_copies_take_lists(store: SlotStore) -> None:
    source = np.arange(64, dtype=np.uint8)
    assert store.copy_in([4, 5], [source.ctypes.data] * 2, [64], kind=FULL, offset=960) == 128
    assert store.read_slot(5)[960:] == source.tobytes()
    assert store.copy_in([], [], []) == 0
    assert store.copy_in([1], [], []) == 0


def test_copies_take_arrays_of_the_other_byte_order(store: SlotStore) -> None:
    source = np.arange(64, dtype=np.uint8)
    ptrs = np.array([source.ctypes.data] * 2)
    slots, sizes = np.array([4, 5]), np.array([64])
    assert store.copy_in(slots.astype(">i4"), ptrs.astype(">u8"), sizes.astype(">i8")) == 128
    assert store.read_slot(5)[:64] == source.tobytes()


def test_write_slot_leaves_the_rest_of_the_slot(store: SlotStore) -> None:
    store.write_slot(2, b"x" * 1024)
    store.write_slot(2, np.arange(4, dtype=np.uint32).reshape(2, 2))
    store.write_slot(2, b"")
    assert store.read_slot(2)[:17] == np.arange(4, dtype=np.uint32).tobytes() + b"x"


def test_a_copy_to_a_slot_out_of_range_is_an_index_error(store: SlotStore) -> None:
    source = np.ones(4, np.uint8)
    for slot in (-1, 10):
        with pytest.raises(IndexError, match=f"slot {slot}"):
            store.copy_in([0, slot], [source.ctypes.data] * 2, [4])
    assert store.read_slot(0) == bytes(1024)


def test_slots_must_be_integers(store: SlotStore) -> None:
    with pytest.raises(TypeError):
        store.slot_view(1.0)  # type: ignore[arg-type]
    unsigned = [np.zeros(1, np.uint32), np.zeros(1, np.uint64), (ctypes.c_uint32 * 1)()]
    wrongs = [[0.0], ["0"], np.zeros(1), np.zeros((1, 1), np.int32), np.zeros(1, np.int16)]
    for wrong in (*wrongs, *unsigned):
        with pytest.raises(ValueError, match="slots"):
            store.copy_in(wrong, [1], [1])
    with pytest.raises(ValueError, match="sizes must be uint64"):
        store.copy_in([0], [1], np.ones(1, np.int32))


def test_refused_copies_change_nothing(store: SlotStore) -> None:
    source = np.ones(2048, np.uint8)
    at = source.ctypes.data
    cases: list[tuple[list[int], list[int], list[int], int]] = [
        ([0, 1], [at] * 3, [1], 0),
        ([0, 1], [at] * 4, [1], 0),
        ([0, 1], [at] * 4, [1] * 3, 0),
        ([0], [at], [1025], 0),
        ([0], [at], [1], 1024),
        ([0], [at], [1], -1),
        ([0], [at, at], [1024, 1], 0),
        ([0], [at], [-1], 0),
        ([0], [at, 0], [1, 1], 0),
        ([], [at], [1], 0),
    ]
    for slots, ptrs, sizes, offset in cases:
        for copy in (store.copy_in, store.copy_out):
            with pytest.raises(ValueError, match=r"len\(|fragment|offset|null"):
                copy(slots, ptrs, np.array(sizes, np.int64), offset=offset)
    assert bytes(store.data_view()) == bytes(store.data_bytes)
    assert source.all()


def test_write_slot_refuses_what_does_not_fit(store: SlotStore) -> None:
    with pytest.raises(ValueError, match=r"1025 bytes .*1024"):
        store.write_slot(0, bytes(1025))
    with pytest.raises(TypeError):
        store.write_slot(0, "text")  # type: ignore[arg-type]
    assert store.read_slot(0) == bytes(1024)
