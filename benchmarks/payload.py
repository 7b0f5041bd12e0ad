# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Bytes that say which block they belong to, and tokens that give every block its hash.

Every 8-byte word of a block depends on the block's prefix hash and on its place in the block, so
bytes of another block, of another place, or of a half-written copy are all found.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["block_bytes", "block_tokens", "count_wrong_bytes"]

_VOCABULARY = 128_000
_PLACE = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


def block_bytes(
    hashes: npt.NDArray[np.uint64],
    slot_bytes: int,
    out: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.uint8]:
    """The bytes of each block, one row of `slot_bytes` (a multiple of 8) per hash.

    `out`: C-contiguous memory of at least that many rows; its first rows are filled and returned.
    """
    if slot_bytes <= 0 or slot_bytes % 8:
        raise ValueError(f"slot_bytes must be a positive multiple of 8, got {slot_bytes}")
    if out is None:
        out = np.empty((len(hashes), slot_bytes), np.uint8)
    rows = out[: len(hashes)]
    words = rows.view(np.uint64)
    places = np.arange(1, slot_bytes // 8 + 1, dtype=np.uint64) * _PLACE
    np.bitwise_xor(hashes[:, None], places[None, :], out=words)
    words *= _MIX
    words ^= words >> _HALF
    return rows


def count_wrong_bytes(
    rows: npt.NDArray[np.uint8], hashes: npt.NDArray[np.uint64], scratch: npt.NDArray[np.uint8]
) -> npt.NDArray[np.int64]:
    """How many bytes of each row differ from what its block must hold.

    `scratch`: memory like `rows`, overwritten.
    """
    expected = block_bytes(hashes, rows.shape[1], scratch)
    if np.array_equal(rows.view(np.uint64), expected.view(np.uint64)):
        return np.zeros(len(rows), np.int64)
    wrong: npt.NDArray[np.int64] = np.count_nonzero(rows != expected, axis=1)
    return wrong


def block_tokens(ids: npt.NDArray[np.int64], tokens_per_block: int) -> npt.NDArray[np.int32]:
    """The token ids of a path: `tokens_per_block` tokens made from each block id."""
    place = np.arange(tokens_per_block, dtype=np.uint64)
    mixed = ids.astype(np.uint64)[:, None] * _PLACE + place[None, :] * _MIX
    mixed ^= mixed >> _HALF
    mixed *= _MIX
    mixed >>= _HALF
    return (mixed % np.uint64(_VOCABULARY)).astype(np.int32).reshape(-1)
