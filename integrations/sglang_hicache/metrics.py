# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Pages and bandwidth of each batch, for SGLang's storage metrics."""

from __future__ import annotations

import threading

from sglang.srt.observability.metrics_collector import StorageMetrics

from .pools import PagePart

__all__ = ["Meter"]

_MOST = 4096  # batches between two looks; SGLang looks in each step


class Meter:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._figures = StorageMetrics()

    def fetched(self, pages: int, part: PagePart, seconds: float) -> None:
        """Pages came to host memory."""
        self._note("prefetch", pages, part, seconds)

    def stored(self, pages: int, part: PagePart, seconds: float) -> None:
        """Pages went from host memory, or were there."""
        self._note("backup", pages, part, seconds)

    def _note(self, what: str, pages: int, part: PagePart, seconds: float) -> None:
        with self._guard:
            counts = getattr(self._figures, f"{what}_pgs")
            if pages and len(counts) < _MOST:
                counts.append(pages)
                rate = pages * int(part.sizes.sum()) / seconds / 1e9
                getattr(self._figures, f"{what}_bandwidth").append(rate)

    def take(self) -> StorageMetrics:
        """What came since the last time: pages, and GB/s, of each batch."""
        with self._guard:
            figures, self._figures = self._figures, StorageMetrics()
        return figures
