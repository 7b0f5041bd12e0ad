# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Touching the pages of the slots in the background, so that no request pays for it later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from .errors import RadixError
from .node import Runner
from .store import SlotStore

__all__ = ["Prefault"]

_MAX_THREADS = 16


class _Cancelled(Exception):
    pass


class Prefault:
    """One pass over a store. `on_progress(done_bytes, total_bytes)` runs in a worker thread."""

    def __init__(
        self, store: SlotStore, run: Runner, on_progress: Callable[[int, int], None]
    ) -> None:
        self._store = store
        self._run = run
        self._on_progress = on_progress
        self._cancelled = False
        self._done_bytes = 0
        self._total_bytes = store.data_bytes

    def figures(self) -> dict[str, int]:
        return {"done_bytes": self._done_bytes, "total_bytes": self._total_bytes}

    def cancel(self) -> None:
        """End the pass after the chunk it is at."""
        self._cancelled = True

    async def run(self) -> None:
        """Returns when every page was touched, or after `cancel`."""
        threads = max(1, min(_MAX_THREADS, (os.cpu_count() or 1) // 2))
        touching = asyncio.ensure_future(self._run(self._touch, threads))
        try:
            await asyncio.shield(touching)
        finally:
            self.cancel()
            await touching

    def _touch(self, threads: int) -> None:
        try:
            self._store.prefault(threads, self._progress)
        except RadixError:
            if not self._cancelled:  # else the store was closed under it
                raise
        except _Cancelled:
            return

    def _progress(self, done_bytes: int, total_bytes: int) -> None:
        if self._cancelled:
            raise _Cancelled
        self._done_bytes, self._total_bytes = done_bytes, total_bytes
        self._on_progress(done_bytes, total_bytes)
