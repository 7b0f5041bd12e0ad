# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Rows of vLLM's scheduler: the calls by which it looks up a prefix and prepares its load."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from rows import Row, Samples, bounded, interleave, time_text
from server_process import own_name, radix_server
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

import radixshmem
from radixshmem import COMPONENT_MASK_FULL, ComponentType
from radixshmem.integrations.vllm_offload.groups import GroupShape, map_groups
from radixshmem.integrations.vllm_offload.manager import RadixShmemManager

__all__ = ["call_rows"]

_BLOCK_TOKENS = 16
_SLOT_BYTES = 4096
_SLOTS = 4096
_BLOCKS = 512
_TAIL = 64
_REQUESTS = 20  # per sample
_ROUND = range(_REQUESTS)
_TIMEOUT_MS = 5000
_OURS, _THEIRS = "radixshmem", "vLLM's CPU manager"
_EMPTY, _CORE = "empty calls", "core"


class _Empty(base.OffloadingManager):
    """What the calls themselves cost."""

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return LookupResult.HIT

    def prepare_load(self, keys: Any, req_context: ReqContext) -> Any:
        return None

    def complete_load(self, keys: Any, req_context: ReqContext) -> None:
        return None

    def prepare_store(self, keys: Any, req_context: ReqContext) -> Any:
        return None

    def complete_store(self, keys: Any, req_context: ReqContext, success: bool = True) -> None:
        return None

    def on_new_request(self, req_context: ReqContext) -> Any:
        return None

    def on_request_finished(self, req_context: ReqContext) -> None:
        return None


def _hashes(seed: str, count: int) -> list[bytes]:
    return [hashlib.sha256(f"{seed}/{i}".encode()).digest() for i in range(count)]


class _Request:
    """A request as vLLM holds it: own keys, whose positions the context knows."""

    def __init__(self, name: str, hashes: list[bytes]) -> None:
        self.hashes = [bytes(bytearray(h)) for h in hashes]
        self.keys = [make_offload_key(h, 0) for h in self.hashes]
        self.context = ReqContext(name)
        if not hasattr(self.context, "set_offload_key_position"):  # vLLM 0.30
            return
        for index, key in enumerate(self.keys):
            self.context.set_offload_key_position(key, (index + 1) * _BLOCK_TOKENS)

    def announce(self, manager: Any) -> None:
        """What RadixShmemConnector adds to a request's begin is counted too."""
        if isinstance(manager, RadixShmemManager):
            manager.offer(self.context.req_id, self.hashes)
        manager.on_new_request(self.context)
        if isinstance(manager, RadixShmemManager):
            manager.begin_round(self.context.req_id, len(self.hashes) * _BLOCK_TOKENS + 1)


def _load(manager: Any, request: _Request) -> None:
    """The calls of a request whose blocks are all restored."""
    context, keys = request.context, request.keys
    request.announce(manager)
    lookup = manager.lookup
    for key in keys:
        if lookup(key, context) is not LookupResult.HIT:
            raise RuntimeError("a block that was stored is not found")
    manager.prepare_load(keys, context)
    manager.complete_load(set(keys), context)
    manager.on_request_finished(context)


def _store(manager: Any, request: _Request) -> None:
    """The calls of a request whose last 64 blocks are new."""
    context, keys = request.context, request.keys[-_TAIL:]
    request.announce(manager)
    manager.prepare_store(keys, context)
    manager.complete_store(set(keys), context)
    manager.on_request_finished(context)


def _sample(manager: Any, calls: Any, requests: list[_Request]) -> float:
    """Seconds of one of them. The median, since other processes interrupt some."""
    return statistics.median(_timed(partial(calls, manager, request)) for request in requests)


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


@contextlib.contextmanager
def _ours() -> Iterator[RadixShmemManager]:
    name = own_name("bench_vllm")
    shape = GroupShape("FullAttentionSpec", ComponentType.FULL)
    groups = map_groups([shape], 32).placed([[_SLOT_BYTES]], 0)
    geometry = radixshmem.Geometry(_BLOCK_TOKENS, _SLOT_BYTES)
    with (
        radix_server(name, "--data-bytes", str(_SLOTS * _SLOT_BYTES)),
        radixshmem.RadixClient(name, geometry) as client,
    ):
        client.wait_ready(60.0)
        yield RadixShmemManager(client, groups, _BLOCK_TOKENS, 1, _TIMEOUT_MS)


def _core_part(client: radixshmem.RadixClient, hashes: list[bytes]) -> float:
    """Seconds of what the manager asks of the client for one request."""
    words = np.frombuffer(b"".join([h[:8] for h in hashes]), "<u8")

    def calls() -> None:
        job = client.pull_async(
            words, COMPONENT_MASK_FULL, lock=True, timeout_ms=_TIMEOUT_MS, block=False
        )
        assert job.done()
        result = job.wait()
        assert len(result.full_slots) == result.common_hit == _BLOCKS
        assert client.store is not None
        assert client.store.nonce
        result.finalize()

    return statistics.median(_timed(calls) for _ in _ROUND)


def call_rows(rounds: int) -> list[Row]:
    """Our manager beside one that does nothing and beside vLLM's own for host memory."""
    prefix = _hashes("prefix", _BLOCKS)
    numbers = itertools.count()

    def load(manager: Any) -> float:
        return _sample(manager, _load, [_Request(f"r{next(numbers)}", prefix) for _ in _ROUND])

    def store(manager: Any) -> float:
        fresh = [f"r{next(numbers)}" for _ in _ROUND]
        requests = [_Request(name, prefix + _hashes(name, _TAIL)) for name in fresh]
        return _sample(manager, _store, requests)

    with _ours() as ours:
        managers = {_OURS: ours, _EMPTY: _Empty(), _THEIRS: CPUOffloadingManager(_SLOTS)}
        for manager in managers.values():
            first = _Request("first", prefix)
            first.announce(manager)
            manager.prepare_store(first.keys, first.context)
            manager.complete_store(set(first.keys), first.context)
            manager.on_request_finished(first.context)
        loads = {name: partial(load, manager) for name, manager in managers.items()}
        stores = {name: partial(store, manager) for name, manager in managers.items()}
        core = partial(_core_part, ours._client, prefix)
        return _rows(interleave(rounds, {_CORE: core, **loads}), interleave(rounds, stores))


def _rows(loads: Samples, stores: Samples) -> list[Row]:
    figure = f"vLLM: look up and prepare the load of {_BLOCKS} blocks"
    pairs = zip(loads[_OURS], loads[_EMPTY], strict=True)
    core_s = statistics.median(loads[_CORE])
    return [
        Row(f"{figure}, the core's part", time_text(core_s), "", core_s * 1e6, 30.0, unit="us"),
        Row(
            figure=f"{figure}, more than empty calls, per block",
            measured=f"{_OURS}: {time_text(statistics.median(loads[_OURS]))}",
            reference=f"{_EMPTY}: {time_text(statistics.median(loads[_EMPTY]))}",
            value=statistics.median((a - b) / _BLOCKS for a, b in pairs) * 1e6,
            bound=0.6,
            unit="us",
        ),
        bounded(figure, loads, _OURS, _THEIRS, 1.0),
        bounded(
            f"vLLM: prepare and complete the store of {_TAIL} blocks behind {_BLOCKS}",
            stores,
            _OURS,
            _THEIRS,
            None,
        ),
    ]
