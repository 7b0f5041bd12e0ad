# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Tasks that nobody waits for, ending tasks for certain, waiting for one in a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

__all__ = ["Tasks", "cancel_all", "log_failure", "wait_in_thread"]

_T = TypeVar("_T")

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


class Tasks:
    """Tasks that nobody waits for: each is kept until it ends, and its error is logged."""

    def __init__(self, what: str) -> None:
        """`what` failed, the log will say."""
        self._what = what
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel(self) -> None:
        """Returns when all have ended."""
        await cancel_all(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        log_failure(task, self._what)


def wait_in_thread(
    work: Coroutine[Any, Any, _T], loop: asyncio.AbstractEventLoop, timeout_s: float, failure: str
) -> _T:
    """The result of `work`, which runs in `loop`. TimeoutError with `failure`; then it is ended."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result(timeout_s)
    except concurrent.futures.TimeoutError:  # before Python 3.11 it is no TimeoutError
        future.cancel()
        raise TimeoutError(f"{failure} within {timeout_s:g} s") from None
