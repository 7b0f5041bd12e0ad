# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""An SGLang plugin that stops a storage at a chosen place for as long as a test wants.

While the folder `RADIX_GATES` has a file POINT.RANK, that TP rank waits at the point, and says so
with a file POINT.RANK.reached. Points: `asked`, when it knows which pages are there; `read`, with
the pages pinned and not yet copied; `write`, with slots allocated and not yet written.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["register"]

_LONGEST_S = 120.0
_POLL_S = 0.005
_here = threading.local()


def register() -> None:
    from radixshmem.integrations.sglang_hicache.pages import Batch
    from radixshmem.integrations.sglang_hicache.storage import RadixShmemStorage

    for name in ("_get", "_set"):
        setattr(RadixShmemStorage, name, _ranked(getattr(RadixShmemStorage, name)))
    for name in ("batch_exists", "batch_exists_v2"):
        setattr(RadixShmemStorage, name, _asked(getattr(RadixShmemStorage, name)))
    for name in ("read", "write"):
        setattr(Batch, name, _before(name, getattr(Batch, name)))


def _ranked(call: Callable[..., Any]) -> Callable[..., Any]:
    def ranked(self: Any, *arguments: Any) -> Any:
        _here.rank = self._attachment.config.tp_rank
        return call(self, *arguments)

    return ranked


def _asked(call: Callable[..., Any]) -> Callable[..., Any]:
    def asked(self: Any, *arguments: Any, **options: Any) -> Any:
        answer = call(self, *arguments, **options)
        _pass("asked", self._attachment.config.tp_rank)
        return answer

    return asked


def _before(point: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def before(self: Any, *arguments: Any) -> Any:
        _pass(point, _here.rank)
        return call(self, *arguments)

    return before


def _pass(point: str, rank: int) -> None:
    gate = Path(os.environ["RADIX_GATES"]) / f"{point}.{rank}"
    if not gate.exists():
        return
    gate.with_suffix(f".{rank}.reached").touch()
    deadline = time.monotonic() + _LONGEST_S
    while gate.exists() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
