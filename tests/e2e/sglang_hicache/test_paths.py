# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The keys of a call become the path from the begin of the sequence on."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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


def test_a_prompt_of_many_batches_is_remembered_as_one_path() -> None:
    known = Paths(SALT)
    short, long, stored = page_keys("a", 4), page_keys("b", 300), page_keys("c", 300)
    known.asked(short, behind(None))
    for begin in range(0, 300, 3):
        known.asked(long[begin : begin + 3], behind(long[:begin]))
    for call in range(2):  # as it is fetched, and as it is stored
        for begin in range(0, 300, 3):
            path, first = known.of(long[begin : begin + 3], behind(long[:begin] if call else None))
            assert first == begin
            assert path.tolist() == fold_page_keys(long[: begin + 3], salt=SALT).tolist()
    for begin in range(0, 300, 3):
        known.of(stored[begin : begin + 3], behind(stored[:begin]))
    for keys in (short, long, stored):
        assert known.of(keys[-1:], behind(keys[:1]))[1] == len(keys) - 1


def test_what_is_used_is_remembered_longer() -> None:
    keys = page_keys("a", 10)
    known = Paths(SALT)
    known.asked(keys, behind(None))
    for seed in range(200):
        known.asked(page_keys(str(seed), 2), behind(None))
        if seed % 50 == 0:
            assert known.of(keys[6:], behind(keys[:2]))[1] == 6
    for seed in range(200):
        known.asked(page_keys(str(seed), 2), behind(None))
    assert known.of(keys[6:], behind(keys[:2]))[1] == 2


def test_threads_get_the_paths_that_they_ask_for() -> None:
    known = Paths(SALT)
    prompts = [page_keys(str(seed), 20) for seed in range(100)]
    wanted = [fold_page_keys(keys, salt=SALT).tolist() for keys in prompts]

    def ask(number: int) -> None:
        for turn in range(300):
            which = (number * 17 + turn * 7) % len(prompts)
            keys, begin = prompts[which], turn % 19
            known.asked(keys[begin:], behind(keys[:begin]))
            path, first = known.of(keys[10:], behind(keys[: begin % 10]))
            assert first in (10, begin % 10)  # others may have driven it out
            if first == 10:
                assert path.tolist() == wanted[which]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(8)))
