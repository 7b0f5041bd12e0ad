# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Blocks that other nodes have: fetched in the background while the request waits in its queue."""

from __future__ import annotations

import logging
import time

import numpy as np
import numpy.typing as npt

from radixshmem import PullResult, RadixClient, RadixError

__all__ = ["Pull"]

_log = logging.getLogger("radixshmem.vllm")

_SLACK_S = 1.0  # beyond the deadline of the fetch, at which the job should end by itself


class Pull:
    """One fetch. A fetch that fails, or does not end, leaves the request what is local."""

    __slots__ = ("_give_up_at", "_job")

    def __init__(
        self, client: RadixClient, words: npt.NDArray[np.uint64], mask: int, timeout_ms: int
    ) -> None:
        self._give_up_at = time.monotonic() + timeout_ms / 1000 + _SLACK_S
        self._job = client.pull_async(words, mask, lock=True, timeout_ms=timeout_ms, block=False)

    @property
    def planned_hit(self) -> int:
        """Blocks that are local when it has ended well."""
        return int(self._job.planned_hit)

    @property
    def local_hit(self) -> int:
        """Blocks that were local when it began."""
        return int(self._job.local_hit)

    def runs(self) -> bool:
        return not self._job.done() and time.monotonic() < self._give_up_at

    def result(self) -> PullResult | None:
        """A pinned PullResult, or None. It must not run any more."""
        why: object = "it did not end in time"
        if self._job.done():
            try:
                return self._job.wait(0)
            except (RadixError, RuntimeError, TimeoutError) as error:
                why = error
        self._job.cancel()
        _log.warning("radixshmem: a fetch from another node failed: %s", why)
        return None

    def cancel(self) -> None:
        """Nothing of it stays pinned."""
        self._job.cancel()
