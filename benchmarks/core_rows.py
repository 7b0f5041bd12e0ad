# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Rows of the C++ core, without Python: measured by `radix_bench`, here only compared."""

from __future__ import annotations

import functools
import statistics

from coprocess import RadixBench
from rows import Row, Samples, bounded, interleave, skipped, time_text

__all__ = ["core_rows"]

_REBUILDS = 5
_SHORT_BLOCKS, _LONG_BLOCKS = 512, 4096
_FIGURES = (
    "C++ query, 512-block hit, cold, slots copied out",
    "C++ query, 4096-block hit, per further block",
    "full rebuild, 950k blocks of the workload",
    "full rebuild, 1M single-block paths",
)


def core_rows(executable: str, workload_file: str, rounds: int) -> list[Row]:
    """Queries against dependent random accesses, and rebuild times."""
    if not executable:
        return [skipped(figure, "needs radix_bench") for figure in _FIGURES]
    with RadixBench(executable, workload_file) as bench:
        names = ("query_512", "walk", "query_512_pinned", "query_4096")
        samples = interleave(
            rounds, {name: functools.partial(bench.measure, name) for name in names}
        )
        rebuilds = [bench.measure("rebuild") for _ in range(_REBUILDS)]
        single = [bench.measure("rebuild_single") for _ in range(_REBUILDS)]
    return [
        bounded(_FIGURES[0], samples, "query_512", "walk", 4.0, note="dependent accesses"),
        bounded(
            "C++ query, 512-block hit, cold, pinned and let go",
            samples,
            "query_512_pinned",
            "walk",
            None,
            note="dependent accesses",
        ),
        _per_block(samples),
        _rebuild(_FIGURES[2], rebuilds, 0.5),
        _rebuild(_FIGURES[3], single, 1.0),
    ]


def _per_block(samples: Samples) -> Row:
    pairs = zip(samples["query_4096"], samples["query_512"], strict=True)
    extra = [(long - short) / (_LONG_BLOCKS - _SHORT_BLOCKS) for long, short in pairs]
    return Row(
        figure=_FIGURES[1],
        measured=f"query_4096: {time_text(statistics.median(samples['query_4096']))}",
        reference=f"query_512: {time_text(statistics.median(samples['query_512']))}",
        value=statistics.median(extra) * 1e9,
        bound=1.5,
        unit="ns",
    )


def _rebuild(figure: str, seconds: list[float], bound_s: float) -> Row:
    median = statistics.median(seconds)
    return Row(figure, time_text(median), "", median, bound_s, unit="s")
