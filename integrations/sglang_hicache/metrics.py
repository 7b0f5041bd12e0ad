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

    def fetched(self, ok: list[bool], part: PagePart, seconds: float) -> None:
        """Pages came to host memory."""
        self._note(self._figures.prefetch_pgs, self._figures.prefetch_bandwidth, ok, part, seconds)

    def stored(self, ok: list[bool], part: PagePart, seconds: float) -> None:
        """Pages went from host memory, or were there."""
        self._note(self._figures.backup_pgs, self._figures.backup_bandwidth, ok, part, seconds)

    def _note(
        self, pages: list[int], rates: list[float], ok: list[bool], part: PagePart, seconds: float
    ) -> None:
        done = sum(ok)
        with self._guard:
            if done and len(pages) < _MOST:
                pages.append(done)
                rates.append(done * int(part.sizes.sum()) / seconds / 1e9)

    def take(self) -> StorageMetrics:
        """What came since the last time: pages, and GB/s, of each batch."""
        with self._guard:
            figures, self._figures = self._figures, StorageMetrics()
        return figures
