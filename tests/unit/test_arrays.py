# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import array
import enum

import numpy as np
import pytest

from radixshmem_core.arrays import as_count, as_hashes, as_int, as_slots, as_tokens
from radixshmem_core.values import ComponentType


@pytest.mark.parametrize("dtype", [np.uint64, np.int64])
def test_hash_arrays_pass_as_they_are(dtype: type) -> None:
    hashes = np.arange(5, dtype=dtype)
    assert as_hashes(hashes) is hashes


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_slot_arrays_pass_as_they_are(dtype: type) -> None:
    slots = np.arange(5, dtype=dtype)
    assert as_slots(slots) is slots


def test_lists_are_copied_once() -> None:
    assert as_hashes([1, 2**64 - 1]).tolist() == [1, 2**64 - 1]
    assert as_slots((-1, 7)).tolist() == [-1, 7]
    assert as_hashes([]).dtype == np.uint64
    assert as_slots([]).size == 0


def test_buffers_are_taken() -> None:
    assert as_hashes(array.array("Q", [5, 6])).tolist() == [5, 6]
    assert as_slots(memoryview(array.array("i", [5, 6]))).tolist() == [5, 6]


@pytest.mark.parametrize("dtype", [">i8", ">u8"])
def test_arrays_of_the_other_byte_order_are_taken(dtype: str) -> None:
    values = np.array([0, 1, 2**40], dtype)
    assert as_hashes(values).tolist() == as_hashes(memoryview(values)).tolist() == [0, 1, 2**40]
    assert as_tokens(values[:2]).tolist() == [0, 1]
    assert as_slots(np.array([-1, 7], ">i8")).tolist() == [-1, 7]
    assert as_slots(np.array([-1, 7], ">i4")).dtype == np.int32


def test_strided_arrays_become_contiguous() -> None:
    strided = np.arange(10, dtype=np.uint64)[::2]
    flat = as_hashes(strided)
    assert flat.flags.c_contiguous
    assert flat.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    "values",
    [
        np.arange(3, dtype=np.int32),
        np.arange(3, dtype=np.float64),
        np.zeros((2, 2), np.uint64),
        [1.5],
        [True],
        ["a"],
        [2**64],
        [-1],
        None,
        "abc",
    ],
)
def test_other_hashes_are_refused(values: object) -> None:
    with pytest.raises(ValueError, match="hashes"):
        as_hashes(values)


@pytest.mark.parametrize(
    "values",
    [np.arange(3, dtype=np.uint64), np.zeros((2, 2), np.int32), [1.5], [2**63], None],
)
def test_other_slots_are_refused(values: object) -> None:
    with pytest.raises(ValueError, match="slots"):
        as_slots(values)


def test_components_of_any_enum() -> None:
    class Plain(enum.Enum):
        SWA = 1

    assert [as_int(value) for value in (1, np.int64(1), ComponentType.SWA, Plain.SWA)] == [1] * 4


@pytest.mark.parametrize("value", [2**70, -(2**70), 1.5, "3", None])
def test_as_count_refuses_what_no_number_of_slots_is(value: object) -> None:
    with pytest.raises(ValueError, match="start is"):
        as_count(value, "start")


@pytest.mark.parametrize("value", [2**40, -1])
def test_as_int_refuses_what_no_mask_is(value: int) -> None:
    with pytest.raises(ValueError, match="between 0 and 7"):
        as_int(value)


@pytest.mark.parametrize(
    "value", [float("inf"), np.array([1, 2]), np.datetime64("2026-01-01T00:00:00"), "1", None]
)
def test_as_int_refuses_what_is_no_number(value: object) -> None:
    with pytest.raises(ValueError, match="no component or mask"):
        as_int(value)
