# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The rows that `make bench` measures inside SGLang can be measured, whatever they say."""

from __future__ import annotations

from typing import Any

import pytest
from sglang_lookups import lookup_rows
from sglang_pages import page_rows

from radixshmem.integrations.sglang_hicache import RadixShmemStorage


def test_lookups_and_copies_are_measured() -> None:
    rows = [*lookup_rows(1), *page_rows(1)]
    assert len(rows) == 14
    assert all(row.value is not None and row.value > 0 for row in rows)
    assert sum(row.bound is not None for row in rows) == 13


def test_a_storage_that_finds_too_little_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RadixShmemStorage, "batch_exists", lambda self, keys, extra: len(keys) - 1)
    with pytest.raises(RuntimeError, match="511 of 512 stored pages are found"):
        lookup_rows(1)


@pytest.mark.parametrize(
    ("method", "answer", "complaint"),
    [
        ("batch_set_v1", False, "could not store"),
        ("batch_set_v1", True, "got 0 of 128 pages"),
        ("batch_get_v1", True, "with other bytes"),
    ],
    ids=["stores nothing", "says that it stores", "says that it loads"],
)
def test_a_storage_that_copies_nothing_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, method: str, answer: bool, complaint: str
) -> None:
    def copy_nothing(_: Any, keys: list[str], *__: Any) -> list[bool]:
        return [answer] * len(keys)

    monkeypatch.setattr(RadixShmemStorage, method, copy_nothing)
    with pytest.raises(RuntimeError, match=complaint):
        page_rows(1)
