# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The picture of a benchmark run: how far each figure is from its bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rows import Row

__all__ = ["draw", "headroom"]

_GOOD, _BAD = "#2a7f62", "#b3392f"


def headroom(row: Row) -> float | None:
    """How many times better than its bound a row is; below 1 it misses it. None without both."""
    if row.value is None or row.bound is None or row.value <= 0:
        return None
    return row.value / row.bound if row.at_least else row.bound / row.value


def draw(rows: Sequence[Row], path: Path, caption: str) -> None:
    """Write a PNG. Raises ImportError naming the package when matplotlib is not installed."""
    try:
        import matplotlib.pyplot as plt
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise ImportError(
            f"the picture needs matplotlib: pip install matplotlib ({error})"
        ) from error
    shown = [(row, ratio) for row in rows if (ratio := headroom(row)) is not None]
    figure, axes = plt.subplots(figsize=(11, 0.42 * len(shown) + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    places = range(len(shown) - 1, -1, -1)
    ratios = [ratio for _, ratio in shown]
    colors = [_GOOD if ratio >= 1 else _BAD for ratio in ratios]
    axes.barh(list(places), [ratio - 1 for ratio in ratios], left=1, color=colors)
    axes.set_yticks(list(places), [row.figure for row, _ in shown], fontsize=9)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("times better than the bound (log scale; the line is the bound)")
    for place, (row, ratio) in zip(places, shown, strict=True):
        sign = ">=" if row.at_least else "<="
        text = f" {row.value:.3g} {row.unit} ({sign} {row.bound:.3g})"
        axes.text(max(ratio, 1.0), place, text, va="center", fontsize=8)
    axes.margins(x=0.25, y=0.02)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("radixshmem benchmark", x=0.01, ha="left", fontweight="bold")
    figure.text(0.01, 0.005, caption, fontsize=7, color="#555555")
    figure.savefig(path, dpi=130)
    plt.close(figure)
