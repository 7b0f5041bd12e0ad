# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The spec under vLLM's own OffloadingConnector, without RadixShmemConnector.

What our connector would tell has to be found out, and one thing cannot be told at all:

- The path of a request is put together from the positions that vLLM notes for its keys.
- A round of lookups begins with the first lookup of a request in a step.
- A transfer that failed cannot be reported. Calling it done would give wrong tokens, so the worker
  stops the engine instead.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, overload

from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import OffloadKey, ReqContext

from radixshmem import RadixError

from .keys import hash_of
from .manager import RadixShmemManager
from .worker import RadixShmemWorker

__all__ = ["BareManager", "BareWorker", "KeyPath", "require_bare_support"]

_POSITIONS = "_offload_key_positions"
_USE = 'use "kv_connector": "RadixShmemConnector"'


def require_bare_support(config: Any) -> None:
    """ValueError where the path of a request cannot be recovered."""
    if _POSITIONS not in {field.name for field in dataclasses.fields(ReqContext)}:
        raise ValueError(
            "OffloadingConnector of this vLLM does not tell a spec where the blocks of a request "
            f"lie: {_USE}, or vLLM 0.31 or later"
        )
    if len(config.groups) != 1:
        raise ValueError(
            "OffloadingConnector does not tell a spec the kinds of KV cache groups, and this "
            f"model has {len(config.groups)} of them: {_USE}"
        )


class KeyPath(Sequence[bytes]):
    """The block hashes of a request, from the keys that vLLM made of them. It only grows."""

    def __init__(self, req_context: ReqContext, block_tokens: int) -> None:
        self._ends: dict[OffloadKey, int] = getattr(req_context, _POSITIONS)
        self._block_tokens = block_tokens
        self._seen = 0
        self._hashes: list[bytes] = []

    def __len__(self) -> int:
        for key, end in itertools.islice(self._ends.items(), self._seen, None):
            if end == (len(self._hashes) + 1) * self._block_tokens:
                self._hashes.append(hash_of(key))
        self._seen = len(self._ends)
        return len(self._hashes)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        return self._hashes[index]


class BareManager(RadixShmemManager):
    """A manager that nobody tells of paths, rounds and steps."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._step = 0
        self._round_of: dict[str, int] = {}  # the step of the last round of lookups

    def on_new_request(self, req_context: ReqContext) -> base.RequestOffloadingContext:
        self.offer(req_context.req_id, KeyPath(req_context, self._block_tokens))
        return super().on_new_request(req_context)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> base.LookupResult:
        if self._round_of.get(req_context.req_id) != self._step:
            self._round_of[req_context.req_id] = self._step
            self.begin_round(req_context.req_id, 0)
        return super().lookup(key, req_context)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._round_of.pop(req_context.req_id, None)
        super().on_request_finished(req_context)

    def on_schedule_end(self, context: Any) -> None:
        super().on_schedule_end(context)
        self._step += 1


class BareWorker(RadixShmemWorker):
    """A worker that does not report what failed."""

    def get_finished(self) -> list[base.TransferResult]:
        done = super().get_finished()
        loads, stores = self.take_failed_loads(), self.take_failed_slots()
        if loads or stores:
            raise RadixError(
                f"{len(loads)} loads and the stores of {len(stores)} slots failed (the warnings "
                "above say why), and OffloadingConnector has no way to report that: the engine "
                f"stops, so that no wrong token comes of it. To go on after such failures {_USE}"
            )
        return done
