# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Ending asyncio tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

__all__ = ["cancel_all"]


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
