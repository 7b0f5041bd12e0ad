# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""fold_page_keys against the same in plain Python, and what it refuses."""

from __future__ import annotations

import collections
import hashlib
import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from radixshmem_core.hashing import fold_page_keys

DIGITS = "0123456789abcdefABCDEF"


def reference(keys: Sequence[str], prefix: Sequence[str] | None = None, salt: int = 0) -> list[int]:
    return [int(key[:16], 16) ^ salt for key in [*(prefix or []), *keys]]


def digests(count: int) -> list[str]:
    return [hashlib.sha256(bytes([i % 256, i // 256])).hexdigest() for i in range(count)]


def test_prefix_comes_first_and_the_first_digit_is_the_most_significant() -> None:
    hashes = fold_page_keys(["00000000000000FFrest"], ["8000000000000001"])
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [0x8000000000000001, 0xFF]


@pytest.mark.parametrize("seed", range(50))
def test_random_keys_equal_the_reference(seed: int) -> None:
    dice = random.Random(seed)

    def some_keys() -> list[str]:
        lengths = [dice.choice([16, 17, 64, 200]) for _ in range(dice.randrange(40))]
        return ["".join(dice.choices(DIGITS, k=length)) for length in lengths]

    keys, prefix = some_keys(), dice.choice([None, [], some_keys()])
    salt = dice.choice([0, 2**64 - 1, dice.getrandbits(64)])
    assert fold_page_keys(keys, prefix, salt=salt).tolist() == reference(keys, prefix, salt)


class Text(str):
    pass


@pytest.mark.parametrize(
    "form",
    [tuple, collections.deque, np.array, lambda keys: [Text(key) for key in keys]],
    ids=["tuple", "deque", "array", "subclass"],
)
def test_other_sequences_and_texts_give_the_same(form: Any) -> None:
    keys = digests(600)
    assert fold_page_keys(form(keys), form(keys[:3])).tolist() == reference(keys, keys[:3])


def test_nothing_gives_nothing() -> None:
    for hashes in (fold_page_keys([]), fold_page_keys([], []), fold_page_keys((), None)):
        assert hashes.dtype == np.uint64
        assert hashes.shape == (0,)


def test_salt_may_be_any_integer_type() -> None:
    key = "0" * 15 + "1"
    assert fold_page_keys([key], salt=np.uint64(2**63)).tolist() == [2**63 + 1]


@pytest.mark.parametrize("salt", [-1, 2**64])
def test_a_salt_beyond_64_bits_is_named(salt: int) -> None:
    with pytest.raises(ValueError, match=re.escape(f"salt = {salt} is outside")):
        fold_page_keys([], salt=salt)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "0123456789abcde",
        "0123456789abcdeg",
        "0x23456789abcdef0",
        " 123456789abcdef0",
        "0123456789abcd\u00e9f0",
        "\uff11" * 16,  # digits to int(), not here
        "0123456789abcde\ud800",
        "0123456789abcde\x00",
        None,
        17,
        b"0123456789abcdef",
        ["0123456789abcdef"],
    ],
    ids=ascii,
)
def test_what_is_no_key_is_named_with_its_list_and_place(bad: Any) -> None:
    good = digests(4)
    with pytest.raises(ValueError, match=re.escape(f"keys[2] = {bad!a} is no page key")):
        fold_page_keys([good[0], good[1], bad, good[3]], good)
    with pytest.raises(ValueError, match=re.escape(f"prefix[1] = {bad!a} is no page key")):
        fold_page_keys(["x"], [good[0], bad])


@pytest.mark.parametrize("bad", [None, "0123456789abcdef", 5, {"0123456789abcdef"}], ids=ascii)
def test_what_is_no_sequence_of_texts_is_refused(bad: Any) -> None:
    if bad is not None:
        with pytest.raises(ValueError, match="prefix must be a sequence of page keys, got "):
            fold_page_keys([], bad)
    with pytest.raises(ValueError, match="keys must be a sequence of page keys, got "):
        fold_page_keys(bad)


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(ValueError, match="is no page key") as error:
        fold_page_keys(["x" * 100_000])
    assert len(str(error.value)) < 300


class Meddler:
    """Empties the list that it is in when it is shown."""

    def __init__(self, keys: list[Any]) -> None:
        self.keys = keys
        keys.append(self)

    def __repr__(self) -> str:
        self.keys.clear()
        return "meddler"


def test_a_list_that_changes_while_its_error_is_made_does_no_harm() -> None:
    keys: list[Any] = []
    Meddler(keys)
    with pytest.raises(ValueError, match=re.escape("keys[0] = meddler")):
        fold_page_keys(keys)
