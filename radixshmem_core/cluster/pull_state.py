# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""When a pull ends, what it brought, and the totals of all pulls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import RadixError
from ..tasks import cancel_all

__all__ = ["PullDeadline", "PullFigures", "PullOutcome"]

_T = TypeVar("_T")


@dataclass
class PullFigures:
    """Totals since the start, for `status`."""

    jobs: int = 0
    pulled_blocks: int = 0
    pulled_bytes: int = 0
    transfer_failures: int = 0
    leases_lost: int = 0
    staging_shortfalls: int = 0
    promotion_shortfalls: int = 0
    kept_back_slots: int = 0


class PullDeadline:
    """When a job ends, whatever has arrived. `pass_now` is how a job is cancelled: a transfer that
    has begun must be seen to its end by somebody. Made and used in the event loop."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s
        self._ended = asyncio.get_running_loop().create_future()

    def left_s(self) -> float:
        return max(0.0, self._at - time.monotonic())

    def passed(self) -> bool:
        return time.monotonic() >= self._at

    def pass_now(self) -> None:
        self._at = 0.0
        if not self._ended.done():
            self._ended.set_result(None)

    async def within(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of `work`. It is cancelled at the deadline: RadixError."""
        task = asyncio.ensure_future(work)
        await asyncio.wait(
            {task, self._ended}, timeout=self.left_s(), return_when=asyncio.FIRST_COMPLETED
        )
        if task.done():
            return task.result()
        await cancel_all([task])
        raise RadixError("the deadline of the pull has passed")


@dataclass
class PullOutcome:
    """What one job brought."""

    common_hit: int
    remote_blocks: int = 0
    remote_bytes: int = 0
    source_rank: int = -1
    staging_shortfalls: int = 0
    promotion_shortfalls: int = 0
    failures: list[str] = field(default_factory=list)
