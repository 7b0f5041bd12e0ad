# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Prefix hashes of token blocks."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from radixshmem_core import _core

__all__ = ["compute_hashes"]

_HASH_LIMIT = 1 << 64
_TOKEN_LIMIT = 1 << 32


def compute_hashes(
    token_ids: Any,
    tokens_per_block: int,
    *,
    namespace: bytes = b"",
    parent: SupportsIndex | None = None,
) -> npt.NDArray[np.uint64]:
    """Chained hashes of the full blocks of `token_ids`: hash i stands for blocks 0..i.

    `token_ids` is a 1-D array of integers of any width, or a sequence of ints. Objects with the
    buffer protocol and torch tensors in host memory are read in place; a list is converted first,
    which costs more than the hashing. With `parent` (a hash of an earlier call, its int64 view
    too) the chain continues from there and `namespace` is ignored. Tokens after the last full
    block are checked but not hashed.

    Raises ValueError for anything but integers in [0, 2**32) in one dimension.
    """
    before = None if parent is None else _as_hash(parent)
    return _core.compute_hashes(
        _as_buffer(token_ids), tokens_per_block, _as_bytes(namespace), before
    )


def _as_bytes(namespace: Buffer) -> bytes:
    try:
        return bytes(memoryview(namespace))
    except TypeError as error:
        raise TypeError(f"namespace must be bytes, got {type(namespace).__name__}") from error


def _as_hash(parent: SupportsIndex) -> int:
    value = operator.index(parent)
    if not -_HASH_LIMIT // 2 <= value < _HASH_LIMIT:
        raise ValueError(f"parent = {value} is not a 64-bit hash; pass one of an earlier call")
    return value % _HASH_LIMIT


def _as_buffer(token_ids: Any) -> Buffer:
    """The tokens as something whose buffer the extension can read."""
    if isinstance(token_ids, np.ndarray):
        return _checked(token_ids)
    if isinstance(token_ids, str):
        raise ValueError("token_ids must be integers, got str; tokenize the text first")
    try:
        return memoryview(token_ids)
    except TypeError:
        pass  # no buffer protocol
    if hasattr(token_ids, "__array__"):
        try:
            return _checked(np.asarray(token_ids))
        except TypeError as error:
            raise ValueError(
                f"token_ids of type {type(token_ids).__name__} cannot be read in host memory: "
                f"{error}"
            ) from error
    return _from_sequence(token_ids)


def _checked(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(
            f"token_ids must be a 1-D array of integers, got {array.ndim}-D of {array.dtype}"
        )
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array


def _from_sequence(token_ids: Iterable[Any]) -> npt.NDArray[Any]:
    try:
        items = list(token_ids)
    except TypeError as error:
        raise ValueError(
            f"token_ids must be a sequence of integers, got {type(token_ids).__name__}"
        ) from error
    if not items:
        return np.empty(0, dtype=np.int64)
    try:
        array = np.asarray(items)
    except (TypeError, ValueError, OverflowError):  # ragged, or not numbers at all
        array = np.empty(0, dtype=object)
    if array.dtype.kind in "iu" and array.ndim == 1:
        return array
    return np.fromiter(map(_token, range(len(items)), items), dtype=np.int64, count=len(items))


def _token(position: int, item: Any) -> int:
    """The item as a token; for sequences that NumPy cannot make an integer array of."""
    try:
        value = operator.index(item)
    except TypeError:
        raise ValueError(f"token_ids[{position}] = {item!r} is not an integer") from None
    if isinstance(item, (bool, np.bool_)):
        raise ValueError(f"token_ids[{position}] = {item!r} is a bool, not a token id")
    if not 0 <= value < _TOKEN_LIMIT:
        raise ValueError(f"token_ids[{position}] = {value} is outside [0, 2**32)")
    return value
