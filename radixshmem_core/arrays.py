# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Tokens, hashes and slots as the core takes them, from whatever a caller has.

Native arrays of the right type pass as they are. Lists, arrays of the other byte order, and hashes
and slots that are not contiguous, are copied once: the slow path.
"""

from __future__ import annotations

import enum
import operator
from array import array as packed
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["as_count", "as_hashes", "as_int", "as_slots", "as_tokens", "is_plain"]


def as_int(value: Any) -> int:
    """The int that a component or mask stands for; enums that are no ints count by their value.

    ValueError for what is no number, text of digits included, or beyond 32 bits.
    """
    if isinstance(value, enum.Enum) and not hasattr(value, "__int__"):
        value = value.value
    try:
        if not hasattr(value, "__int__"):
            raise TypeError
        number = int(value)
    except (TypeError, OverflowError):  # an array of several, infinity
        raise ValueError(
            f"{value!r} is no component or mask: give an int, or an enum of ints"
        ) from None
    if not 0 <= number < 2**31:
        raise ValueError(f"{number} is no component or mask: they lie between 0 and 7")
    return number


def as_count(value: Any, what: str) -> int:
    """`value` as the int that a number of slots or blocks is. ValueError for anything else."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{what} is {value!r}; it must be an int") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{what} is {number}; no pool or path is as long")
    return number


def is_plain(values: Any) -> bool:
    """Whether `values` is an array whose memory is the items one after another, as they are."""
    return isinstance(values, np.ndarray) and values.dtype.isnative and values.flags.c_contiguous


def as_tokens(values: Any) -> npt.NDArray[Any]:
    """1-D array of integers of any width and stride. ValueError for anything that is not that."""
    return _integers(values, "token_ids", "q", 0, 1 << 32)


def as_hashes(values: Any, what: str = "hashes") -> npt.NDArray[Any]:
    """1-D contiguous array of 8-byte integers. ValueError for anything that is not that."""
    array = _integers(values, what, "Q", 0, 1 << 64)
    if array.dtype.itemsize != 8:
        raise ValueError(f"{what} have dtype {array.dtype}; they must be uint64 (or int64)")
    return np.ascontiguousarray(array)


def as_slots(values: Any) -> npt.NDArray[Any]:
    """1-D contiguous array of int32 or int64. ValueError for anything that is not that."""
    array = _integers(values, "slots", "q", -(1 << 63), 1 << 63)
    if array.dtype.kind != "i" or array.dtype.itemsize not in (4, 8):
        raise ValueError(f"slots have dtype {array.dtype}; they must be int32 (or int64)")
    return np.ascontiguousarray(array)


def _integers(values: Any, what: str, code: str, low: int, high: int) -> npt.NDArray[Any]:
    """1-D integers of native byte order, in place where `values` allows it.

    Sequences become arrays of the struct letter `code`, their items integers in [low, high).
    """
    array = values if isinstance(values, np.ndarray) else _in_place(values, what)
    if array is None:
        return _from_sequence(values, what, code, low, high)
    if array.size == 0 and array.ndim == 1 and array is not values:
        return np.empty(0, code)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(
            f"{what} must be a 1-D array of integers, got {array.ndim}-D of {array.dtype}"
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _in_place(values: Any, what: str) -> npt.NDArray[Any] | None:
    """The memory of `values` as an array; None for what has to be read item by item."""
    try:
        return np.asarray(memoryview(values))
    except TypeError:
        pass  # no buffer protocol
    if not hasattr(values, "__array__"):
        return None
    try:
        return np.asarray(values)
    except TypeError as error:
        raise ValueError(
            f"{what} of type {type(values).__name__} cannot be read in host memory: {error}"
        ) from error


def _from_sequence(values: Any, what: str, code: str, low: int, high: int) -> npt.NDArray[Any]:
    if isinstance(values, str):
        raise ValueError(f"{what} must be a sequence of integers, got str")
    try:
        items = list(values)
    except TypeError as error:
        raise ValueError(
            f"{what} must be a sequence of integers, got {type(values).__name__}"
        ) from error
    if not items or not isinstance(items[0], bool):  # True first: a mask
        try:
            return np.asarray(packed(code, items))  # NumPy itself would round floats
        except (TypeError, OverflowError):
            pass  # the loop names the item
    numbers = [_item(what, position, item, low, high) for position, item in enumerate(items)]
    return np.asarray(numbers, code)


def _item(what: str, position: int, item: Any, low: int, high: int) -> int:
    try:
        value = operator.index(item)
    except TypeError:
        raise ValueError(f"{what}[{position}] = {item!r} is not an integer") from None
    if isinstance(item, (bool, np.bool_)):
        raise ValueError(f"{what}[{position}] = {item!r} is a bool, not a number")
    if not low <= value < high:
        begin = f"-2**{low.bit_length() - 1}" if low else "0"
        raise ValueError(
            f"{what}[{position}] = {value} is outside [{begin}, 2**{high.bit_length() - 1})"
        )
    return value
