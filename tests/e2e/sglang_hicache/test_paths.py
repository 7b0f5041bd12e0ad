# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The keys of a call become the path from the begin of the sequence on."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from sglang_rig import page_keys

from radixshmem import fold_page_keys
from radixshmem.integrations.sglang_hicache import paths
from radixshmem.integrations.sglang_hicache.paths import Paths

SALT = 7


def behind(prefix: list[str] | None) -> Any:
    return SimpleNamespace(prefix_keys=prefix)


def test_a_path_is_the_prefix_and_the_keys() -> None:
    keys = page_keys("a", 6)
    for prefix in (None, [], keys[:2], keys[:4], keys[:1]):
        first = len(prefix or ())
        path, begin = Paths(SALT).of(keys[first:], behind(prefix))
        assert begin == first
        assert path.tolist() == fold_page_keys(keys, salt=SALT).tolist()


def test_a_prefix_that_was_asked_for_is_not_folded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    folded: list[int] = []

    def counting(keys: Sequence[str], *args: Any, **options: Any) -> Any:
        folded.append(len(keys))
        return fold_page_keys(keys, *args, **options)

    monkeypatch.setattr(paths, "fold_page_keys", counting)
    keys = page_keys("a", 300)
    known = Paths(SALT)
    for begin in (0, 100, 200, 150):  # also one that ends within an earlier path
        path, first = known.asked(keys[begin:], behind(keys[:begin]))
        assert first == begin
        assert path.tolist() == fold_page_keys(keys, salt=SALT).tolist()
    assert folded == [300, 200, 1, 100, 1, 150, 1]


def test_other_prefixes_of_the_same_length_are_told_apart() -> None:
    known = Paths(SALT)
    for seed in ("a", "b", "a", "c"):
        keys = page_keys(seed, 10)
        path, _ = known.of(keys[5:], behind(keys[:5]))
        assert path.tolist() == fold_page_keys(keys, salt=SALT).tolist()


def test_the_end_of_a_prefix_at_another_place_is_another_path() -> None:
    keys = page_keys("a", 10)
    known = Paths(SALT)
    known.asked(keys, behind(None))
    path, first = known.asked(keys[8:], behind(keys[5:8]))
    assert first == 3
    assert path.tolist() == fold_page_keys(keys[5:], salt=SALT).tolist()


def test_keys_without_a_prefix_are_found_in_what_was_asked_for() -> None:
    keys = page_keys("a", 10)
    known = Paths(SALT)
    known.of(keys[4:], behind(keys[:4]))
    for untold in (None, behind(None), behind([])):
        path, first = known.of(keys[6:], untold)
        assert first == 6
        assert path.tolist() == fold_page_keys(keys, salt=SALT).tolist()
        assert Paths(SALT).of(keys[6:], untold)[1] == 0


def test_a_prefix_that_is_told_too_short_is_completed() -> None:
    keys = page_keys("a", 10)
    known = Paths(SALT)
    known.asked(keys[2:], behind(keys[:2]))
    known.asked(page_keys("b", 10), behind(None))
    for told in (0, 1, 2, 5, 6):
        path, first = known.of(keys[6:], behind(keys[:told]))
        assert first == 6
        assert path.tolist() == fold_page_keys(keys, salt=SALT).tolist()
    path, first = Paths(SALT).of(keys[6:], behind(keys[:6]))
    assert first == 6
    assert path.tolist() == fold_page_keys(keys, salt=SALT).tolist()
