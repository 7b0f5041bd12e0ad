# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The row of vLLM's worker: restoring blocks of several layers against plain memcpy."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
import torch
from rows import Row, bounded, interleave
from server_process import own_name, radix_server
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)

import radixshmem
from radixshmem import ComponentType
from radixshmem.integrations.vllm_offload.groups import GroupShape, map_groups
from radixshmem.integrations.vllm_offload.transfer import SlotSpec
from radixshmem.integrations.vllm_offload.worker import RadixShmemWorker

__all__ = ["restore_rows"]

_LAYERS = 8
_PAGE_BYTES = 8192  # of one block of one layer
_BLOCK_BYTES = _LAYERS * _PAGE_BYTES
_BLOCKS = 512
_TIMEOUT_S = 60.0  # of a load


def restore_rows(rounds: int) -> list[Row]:
    """A load of 512 blocks of 64 KiB, each scattered over 8 layers, beside memcpy of as many bytes:
    once a block, and once for all, which some C libraries do in a quicker way."""
    name = own_name("bench_restore")
    shape = GroupShape("FullAttentionSpec", ComponentType.FULL)
    groups = map_groups([shape], 32).placed([[_BLOCK_BYTES]], 0)
    geometry = radixshmem.Geometry(32, _BLOCK_BYTES)
    blocks = np.random.default_rng(6).permutation(_BLOCKS)
    layers = [torch.zeros((_BLOCKS, _PAGE_BYTES), dtype=torch.int8) for _ in range(_LAYERS)]
    caches = CanonicalKVCaches(
        [CanonicalKVCacheTensor(layer, _PAGE_BYTES) for layer in layers],
        [[CanonicalKVCacheRef(i, _PAGE_BYTES) for i in range(_LAYERS)]],
    )
    with (
        radix_server(name, "--data-bytes", str(_BLOCKS * _BLOCK_BYTES)),
        radixshmem.RadixClient(name, geometry) as client,
    ):
        client.wait_ready(60.0)
        store = client.store
        assert store is not None
        slots = client.allocate_slots(_BLOCKS)
        views = [np.frombuffer(store.slot_view(int(slot)), np.uint8) for slot in slots]
        for value, view in enumerate(views):
            view[:] = value % 127
        worker = RadixShmemWorker(client, groups, 0, caches, _TIMEOUT_S)
        source = SlotSpec(slots, store.nonce, "request")
        target = GPULoadStoreSpec(blocks.tolist(), group_sizes=[_BLOCKS], block_indices=[0])
        samples = interleave(
            rounds,
            {
                "load": lambda: _load(worker, source, target),
                "memcpy of 64 KiB": _memcpy([view.ctypes.data for view in views], blocks.tolist()),
                "one memcpy": _memcpy([views[0].ctypes.data], [0], _BLOCKS * _BLOCK_BYTES),
            },
        )
        for value, block in enumerate(blocks.tolist()):
            if any(int(layer[block, -1]) != value % 127 for layer in layers):
                raise RuntimeError(f"block {block} does not hold the bytes of its slot")
        del views
    # At least 0.7x the rate is at most 1/0.7 of the time.
    figure = f"vLLM: restore {_BLOCKS} blocks of 64 KiB in {_LAYERS} layers, time"
    return [
        bounded(f"{figure}, against {peer}", samples, "load", peer, 1 / 0.7)
        for peer in ("memcpy of 64 KiB", "one memcpy")
    ]


def _load(worker: RadixShmemWorker, source: SlotSpec, target: GPULoadStoreSpec) -> float:
    begin = time.perf_counter()
    worker.submit_load(1, source, target)
    worker.wait({1})
    seconds = time.perf_counter() - begin
    worker.get_finished()
    if worker.take_failed_loads():
        raise RuntimeError("a load failed; its warning is above")
    return seconds


def _memcpy(slots: list[int], blocks: list[int], size: int = _BLOCK_BYTES) -> Any:
    """Seconds of the same bytes by one memcpy of `size` a block, into memory of one piece."""
    buffer = np.zeros((_BLOCKS, _BLOCK_BYTES), np.uint8)
    pairs = [
        (buffer.ctypes.data + block * _BLOCK_BYTES, slot)
        for slot, block in zip(slots, blocks, strict=True)
    ]
    memcpy = ctypes.CDLL(None).memcpy
    memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    def measure() -> float:
        begin = time.perf_counter()
        for target, source in pairs:
            memcpy(target, source, size)
        seconds = time.perf_counter() - begin
        assert buffer[0, 0] < 127  # keeps the buffer alive
        return seconds

    return measure
