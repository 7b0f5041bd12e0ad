# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Hashes and slots as the core takes them, from whatever a caller has.

Buffers of the right type pass as they are. Lists, and arrays that are not contiguous, are copied
once: the slow path.
"""

from __future__ import annotations

import enum
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["as_count", "as_hashes", "as_int", "as_slots"]


def as_int(value: Any) -> int:
    """The int that a component or mask stands for; enums that are no ints count by their value.

    ValueError for what is no number, text of digits included, or beyond 32 bits.
    """
    if isinstance(value, enum.Enum) and not hasattr(value, "__int__"):
        value = value.value
    if not hasattr(value, "__int__"):
        raise ValueError(f"{value!r} is no component or mask: give an int, or an enum of ints")
    number = int(value)
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


def as_hashes(values: Any) -> npt.NDArray[Any]:
    """1-D contiguous array of 8-byte integers. ValueError for anything that is not that."""
    if isinstance(values, np.ndarray):
        array = values
    else:
        array = _from_sequence(values, np.uint64, "hashes")
    if array.dtype.kind not in "iu" or array.dtype.itemsize != 8:
        raise ValueError(f"hashes have dtype {array.dtype}; they must be uint64 (or int64)")
    return _flat(array, "hashes")


def as_slots(values: Any) -> npt.NDArray[Any]:
    """1-D contiguous array of int32 or int64. ValueError for anything that is not that."""
    array = values if isinstance(values, np.ndarray) else _from_sequence(values, np.int64, "slots")
    if array.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise ValueError(f"slots have dtype {array.dtype}; they must be int32 (or int64)")
    return _flat(array, "slots")


def _flat(array: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    if array.ndim != 1:
        raise ValueError(f"{what} have shape {array.shape}; they must be one-dimensional")
    return np.ascontiguousarray(array)


def _from_sequence(values: Any, dtype: type, what: str) -> npt.NDArray[Any]:
    try:
        if not isinstance(values, (list, tuple)):
            array = np.asarray(values)
            return array.astype(dtype) if array.size == 0 else array
        for kind in set(map(type, values)):  # NumPy would round floats without a word
            if not issubclass(kind, (int, np.integer)) or kind is bool:
                raise TypeError(f"it holds {kind.__name__}")
        return np.asarray(values, dtype=dtype)
    except (TypeError, OverflowError, ValueError) as error:
        raise ValueError(
            f"{what} of type {type(values).__name__} cannot be used ({error}); give a NumPy array "
            f"of {np.dtype(dtype).name}"
        ) from error
