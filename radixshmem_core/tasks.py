# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Ending asyncio tasks for certain, and telling of those that failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

__all__ = ["cancel_all", "log_failure"]

_log = logging.getLogger("radixshmem.server")


def log_failure(task: asyncio.Task[Any], what: str) -> None:
    """For a task that has ended and that nobody waits for: log its error, as that of `what`."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("%s failed", what, exc_info=error)


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel and wait until all have ended.

    Repeated, because before Python 3.12 `asyncio.wait_for` may swallow a cancellation that comes
    together with its result.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.1)
