# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What SGLang does otherwise with `buffer_only`, when its host memory is a mere staging buffer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e.sglang_hicache.controllers import Fetched, Rank, tokens, waiting
from e2e.sglang_hicache.pools import DRAFT, MAMBA, PAGE, SWA, Sidecar, ends

from radixshmem.integrations.sglang_hicache import attached
from radixshmem_core.server import RadixServer

Start = Callable[..., Rank]


@pytest.fixture(autouse=True)
def window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "window_pages", lambda page_size: SWA.window_pages)


@pytest.mark.parametrize("sidecars", [(), (DRAFT,), (SWA, MAMBA)], ids=["kv", "draft", "swa-mamba"])
@pytest.mark.parametrize("start", [0, 4])
def test_what_came_on_the_device_after_the_question_is_left_out(
    cache: RadixServer, start_rank: Start, sidecars: tuple[Sidecar, ...], start: int
) -> None:
    """The keys that SGLang tells before the pages are too few then."""
    rank = start_rank(*sidecars)
    assert rank.store(tokens(300)) == 300
    operation = rank.query(tokens(300), start)
    rank.controller.trim_prefetch_full_head(operation, 9 * PAGE)
    pages = 300 - start - 9
    assert rank.transfer(operation) == Fetched(pages, pages, ends(sidecars))


@pytest.mark.parametrize("sidecars", [(SWA,), (MAMBA,), (SWA, MAMBA)], ids=["swa", "mamba", "both"])
@pytest.mark.parametrize("asked", [False, True], ids=["decoded", "asked"])
def test_last_pages_that_come_after_their_kv_find_their_place(
    cache: RadixServer, start_rank: Start, sidecars: tuple[Sidecar, ...], asked: bool
) -> None:
    """What a model generates was never asked for."""
    rank = start_rank(*sidecars)
    for begin, end in ((0, 100), (100, 250), (250, 270), (270, 271)):
        path = tokens(end)
        if asked:
            rank.query(path, begin)
        rank.store_apart(path, begin)
        assert waiting(rank) == 0
        lasts = {name: min(pages, end) for name, pages in ends(sidecars).items()}
        assert rank.fetch(path) == Fetched(end, end, lasts)
