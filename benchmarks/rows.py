# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Benchmark rows: what was measured, what it is compared with, and whether the bound was reached.

Every ratio comes from measurements taken in turn in one run, so that a slow spell of the machine
hits both sides; the ratio is the median over the rounds, not the ratio of two medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "Row",
    "Samples",
    "bounded",
    "interleave",
    "ratio",
    "skipped",
    "table_cells",
    "time_text",
]

Samples = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the benchmark's table."""

    figure: str
    measured: str
    reference: str
    """The physical limit, or the peer, in the same run."""
    value: float | None
    """What is bounded; None when the row was skipped."""
    bound: float | None
    """None: for information only."""
    at_least: bool = False
    unit: str = "x"
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the bound holds; None when there is none, or the row was skipped."""
        if self.value is None or self.bound is None:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def interleave(rounds: int, measurements: Mapping[str, Callable[[], float]]) -> Samples:
    """One sample of each in turn, `rounds` times, after one round that does not count."""
    samples: Samples = {name: [] for name in measurements}
    for index in range(rounds + 1):
        for name, measure in measurements.items():
            value = measure()
            if index:
                samples[name].append(value)
    return samples


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over the rounds of ours / theirs."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def bounded(
    figure: str,
    samples: Samples,
    ours: str,
    theirs: str,
    bound: float | None,
    note: str = "",
) -> Row:
    """A row that bounds the ratio of two sampled measurements, given in seconds."""
    return Row(
        figure=figure,
        measured=f"{ours}: {time_text(statistics.median(samples[ours]))}",
        reference=f"{theirs}: {time_text(statistics.median(samples[theirs]))}",
        value=ratio(samples[ours], samples[theirs]),
        bound=bound,
        note=note,
    )


def skipped(figure: str, reason: str) -> Row:
    """A row that could not be measured, and why."""
    return Row(figure, "", "", None, None, note=f"skipped: {reason}")


def time_text(seconds: float) -> str:
    """Seconds in the unit that fits: 470 ns, 12.3 us, 4.5 ms, 1.20 s."""
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.2f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds:.2f} s"


def table_cells(row: Row) -> tuple[str, str, str, str, str, str]:
    """Figure, measured, compared with, value, must be, reached."""
    if row.value is None:
        return (row.figure, row.note, "", "", "", "")
    sign = ">=" if row.at_least else "<="
    reached = {True: "yes", False: "NO", None: ""}[row.reached]
    return (
        row.figure + (f" ({row.note})" if row.note else ""),
        row.measured,
        row.reference,
        f"{row.value:.3g} {row.unit}",
        "" if row.bound is None else f"{sign} {row.bound:.3g} {row.unit}",
        reached,
    )
