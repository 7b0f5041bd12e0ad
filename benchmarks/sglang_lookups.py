# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The row of SGLang's question how much of a prompt is in the storage."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from rows import Row, Samples, interleave, time_text
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo
from sglang_rig import host_pool, page_keys, radix_storage

from radixshmem import RadixClient, fold_page_keys
from radixshmem.integrations.sglang_hicache import RadixShmemStorage

__all__ = ["lookup_rows"]

_PAGES = 512
_PAGE_BYTES = 64 << 10
_CALLS = 20  # per sample
_ASKED, _CORE = "batch_exists", "core query"


def lookup_rows(rounds: int) -> list[Row]:
    """batch_exists beside the core's query of the same path, also in the middle of a prompt."""
    keys = page_keys("prompt", 2 * _PAGES)
    path = fold_page_keys(keys)
    pool = host_pool(_PAGE_BYTES, 1)
    with radix_storage(pool, 3 * _PAGES * _PAGE_BYTES) as (storage, client):
        client.insert(path, client.allocate_slots(len(path)))
        begin = interleave(
            rounds,
            {
                _ASKED: lambda: _exists(storage, keys[:_PAGES], []),
                _CORE: lambda: _query(client, path[:_PAGES]),
            },
        )
        middle = interleave(
            rounds,
            {
                _ASKED: lambda: _exists(storage, keys[_PAGES:], keys[:_PAGES]),
                _CORE: lambda: _query(client, path),
            },
        )
    return [
        _row("SGLang: batch_exists of 512 page keys, more than the core's query", begin, 30.0),
        _row("SGLang: the same behind 512 page keys that were asked for", middle, None),
    ]


def _row(figure: str, samples: Samples, bound: float | None) -> Row:
    more = [a - b for a, b in zip(samples[_ASKED], samples[_CORE], strict=True)]
    return Row(
        figure=figure,
        measured=f"{_ASKED}: {time_text(statistics.median(samples[_ASKED]))}",
        reference=f"{_CORE}: {time_text(statistics.median(samples[_CORE]))}",
        value=statistics.median(more) * 1e6,
        bound=bound,
        unit="us",
    )


def _exists(storage: RadixShmemStorage, keys: list[str], prefix: list[str]) -> float:
    """Each call has texts of its own, as the prompt of each request has."""

    def call() -> Callable[[], int]:
        own = _copies(keys)
        extra = HiCacheStorageExtraInfo(prefix_keys=_copies(prefix) or None)
        return lambda: storage.batch_exists(own, extra)

    return _sample([call() for _ in range(_CALLS)])


def _query(client: RadixClient, path: npt.NDArray[np.uint64]) -> float:
    hit = _PAGES - len(path)
    return _sample([lambda: client.query(path).common_hit + hit] * _CALLS)


def _sample(calls: list[Callable[[], int]]) -> float:
    """Seconds of one of them. The median, since other processes interrupt some."""
    seconds = []
    for call in calls:
        begin = time.perf_counter()
        found = call()
        seconds.append(time.perf_counter() - begin)
        if found != _PAGES:
            raise RuntimeError(f"{found} of {_PAGES} stored pages are found")
    return statistics.median(seconds)


def _copies(keys: list[str]) -> list[str]:
    return [key.encode().decode() for key in keys]
