# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Numbers for people: percentiles and a plain two-column table."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

__all__ = ["format_p50_p99", "machine", "percentile_us", "print_table", "rate_gb_s"]


def percentile_us(seconds: Sequence[float] | npt.NDArray[np.float64], percent: float) -> float:
    """A percentile in microseconds; nan without samples."""
    if not len(seconds):
        return float("nan")
    return float(np.percentile(np.asarray(seconds), percent)) * 1e6


def format_p50_p99(seconds: Sequence[float] | npt.NDArray[np.float64]) -> str:
    """Both percentiles in microseconds as "12.3 / 45.6", or "no sample"."""
    if not len(seconds):
        return "no sample"
    return f"{percentile_us(seconds, 50):.1f} / {percentile_us(seconds, 99):.1f}"


def rate_gb_s(total_bytes: int, seconds: float) -> float:
    """10^9 bytes per second; 0 when nothing was measured."""
    return total_bytes / seconds / 1e9 if seconds > 0 else 0.0


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """First column left, the others right; in full also when the output is not a terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)
    console.print(title, highlight=False)
    table = Table()
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def machine() -> str:
    """One line: processor, cores, system, Python."""
    model = platform.processor() or platform.machine()
    cores = 0
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            cores += 1
    python = platform.python_version()
    return f"{model}, {cores} cores, {platform.system()} {platform.release()}, Python {python}"
