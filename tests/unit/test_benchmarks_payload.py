# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import numpy as np
import pytest
from payload import block_bytes, block_tokens, count_wrong_bytes

HASHES = np.random.default_rng(0).integers(0, 2**64, 6, dtype=np.uint64)


def test_bytes_depend_on_hash_and_place_only() -> None:
    rows = block_bytes(HASHES, 64)
    assert rows.shape == (6, 64)
    assert rows.dtype == np.uint8
    assert np.array_equal(rows[3:4], block_bytes(HASHES[3:4], 64))
    words = rows.view(np.uint64)
    assert len(np.unique(words)) == words.size


def test_bytes_are_the_same_on_every_machine() -> None:
    row = block_bytes(np.array([0x0123456789ABCDEF], np.uint64), 16)[0]
    assert bytes(row).hex() == "9b43604c15070700341430902b85dcb0"


def test_given_memory_is_filled_in_its_first_rows() -> None:
    memory = np.full((8, 32), 0xAA, np.uint8)
    rows = block_bytes(HASHES, 32, memory)
    assert np.shares_memory(rows, memory)
    assert np.array_equal(memory[:6], block_bytes(HASHES, 32))
    assert np.all(memory[6:] == 0xAA)


def test_good_rows_have_no_wrong_bytes() -> None:
    rows = block_bytes(HASHES, 4096)
    assert count_wrong_bytes(rows, HASHES, np.empty_like(rows)).tolist() == [0] * 6


def test_every_wrong_byte_is_counted() -> None:
    rows = block_bytes(HASHES, 256)
    rows[1, 255] ^= 1
    rows[4, 10:13] ^= 0x80
    assert count_wrong_bytes(rows, HASHES, np.empty_like(rows)).tolist() == [0, 1, 0, 0, 3, 0]


def test_exchanged_blocks_and_shifted_words_are_found() -> None:
    rows = block_bytes(HASHES, 256)
    scratch = np.empty_like(rows)
    assert (
        count_wrong_bytes(rows[[1, 0, 2, 3, 4, 5]].copy(), HASHES, scratch)[:3].tolist() != [0] * 3
    )
    shifted = np.roll(rows, 8, axis=1)
    assert np.all(count_wrong_bytes(shifted, HASHES, scratch) > 200)


@pytest.mark.parametrize("slot_bytes", [0, -8, 12])
def test_size_must_be_a_positive_multiple_of_8(slot_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"multiple of 8, got {slot_bytes}"):
        block_bytes(HASHES, slot_bytes)


def test_tokens_depend_on_the_block_id_only() -> None:
    tokens = block_tokens(np.array([5, 6, 5]), 16)
    assert tokens.dtype == np.int32
    assert tokens.shape == (48,)
    assert np.all((tokens >= 0) & (tokens < 128_000))
    assert np.array_equal(tokens[:16], tokens[32:])
    assert not np.array_equal(tokens[:16], tokens[16:32])
    assert block_tokens(np.array([2**62]), 4).shape == (4,)
