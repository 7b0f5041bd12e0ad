# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Prefix hashes of token blocks, made here or taken from an engine's page keys."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from radixshmem_core import _core

from .arrays import as_tokens

__all__ = ["compute_hashes", "fold_page_keys"]

_HASH_LIMIT = 1 << 64


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
        as_tokens(token_ids), tokens_per_block, _as_bytes(namespace), before
    )


def fold_page_keys(
    keys: Sequence[str], prefix: Sequence[str] | None = None, *, salt: SupportsIndex = 0
) -> npt.NDArray[np.uint64]:
    """Block hashes of `prefix` and then `keys`: the first 16 hex digits of each, XOR `salt`.

    For engines whose pages have chained digests in hex as their keys. Lists and tuples are read
    in place. What follows the 16 digits is not looked at.

    Raises ValueError, with list, position and value, for an item that is not such a str.
    """
    number = operator.index(salt)
    if not 0 <= number < _HASH_LIMIT:
        raise ValueError(f"salt = {number} is outside [0, 2**64)")
    return _core.fold_page_keys(keys, prefix, number)


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
