# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Rows about bytes: hashing tokens and copying slots."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from coprocess import RadixBench
from rows import Row, bounded, interleave, skipped
from server_process import own_name, radix_server

import radixshmem

__all__ = ["copy_rows", "hash_rows"]

_TOKENS = 128 * 1024
_BLOCK_TOKENS = 16
_SLOT_BYTES = 1_153_434  # 1.1 MiB
_SLOTS = 48


def hash_rows(rounds: int, bench: RadixBench | None) -> list[Row]:
    """compute_hashes of 128k tokens against the same chain in C."""
    kinds: tuple[type[np.signedinteger[Any]], ...] = (np.int32, np.int64)
    figures = [f"compute_hashes, 128k tokens, {kind.__name__}" for kind in kinds]
    if bench is None:
        return [skipped(figure, "needs radix_bench for the chain in C") for figure in figures]
    random = np.random.default_rng(4)
    tokens = random.integers(0, 128_000, _TOKENS, dtype=np.int64)

    def hasher(kind: type[np.signedinteger[Any]]) -> Callable[[], float]:
        buffer: npt.NDArray[Any] = tokens.astype(kind)

        def measure() -> float:
            begin = time.perf_counter()
            radixshmem.compute_hashes(buffer, _BLOCK_TOKENS)
            return time.perf_counter() - begin

        return measure

    names = [f"compute_hashes {kind.__name__}" for kind in kinds]
    measurements = {name: hasher(kind) for name, kind in zip(names, kinds, strict=True)}
    samples = interleave(
        4 * rounds, {**measurements, "XXH3-64 chain in C": lambda: bench.measure("chained_xxh3")}
    )
    return [
        bounded(figure, samples, name, "XXH3-64 chain in C", 2.0)
        for figure, name in zip(figures, names, strict=True)
    ]


def copy_rows(rounds: int) -> list[Row]:
    """copy_in and copy_out of 1.1 MiB slots against memcpy between the same buffers."""
    name = own_name("bench_copy")
    stride = -(-_SLOT_BYTES // 4096) * 4096
    geometry = radixshmem.Geometry(_BLOCK_TOKENS, _SLOT_BYTES)
    with (
        radix_server(name, "--data-bytes", str(_SLOTS * stride)),
        radixshmem.RadixClient(name, geometry) as client,
    ):
        client.wait_ready(60.0)
        store = client.store
        assert store is not None
        slots = client.allocate_slots(_SLOTS)
        buffers = np.ones((_SLOTS, _SLOT_BYTES), np.uint8)
        first = buffers.ctypes.data
        pointers = first + np.arange(_SLOTS, dtype=np.uint64) * np.uint64(_SLOT_BYTES)
        sizes = np.array([_SLOT_BYTES], np.uint64)
        slot_bytes = [np.frombuffer(store.slot_view(int(slot)), np.uint8) for slot in slots]
        slot_addresses = [array.ctypes.data for array in slot_bytes]
        pairs = list(zip(slot_addresses, pointers.tolist(), strict=True))
        memcpy = ctypes.CDLL(None).memcpy
        memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

        def timed(copy: Callable[[], object]) -> Callable[[], float]:
            def measure() -> float:
                begin = time.perf_counter()
                copy()
                return (time.perf_counter() - begin) / _SLOTS

            return measure

        def memcpy_in() -> None:
            for slot, buffer in pairs:
                memcpy(slot, buffer, _SLOT_BYTES)

        def memcpy_out() -> None:
            for slot, buffer in pairs:
                memcpy(buffer, slot, _SLOT_BYTES)

        samples = interleave(
            rounds,
            {
                "copy_in": timed(lambda: store.copy_in(slots, pointers, sizes)),
                "memcpy in": timed(memcpy_in),
                "copy_out": timed(lambda: store.copy_out(slots, pointers, sizes)),
                "memcpy out": timed(memcpy_out),
            },
        )
        del slot_bytes
    # At least 0.8x the rate is at most 1/0.8 of the time.
    return [
        bounded(f"{ours} of 1.1 MiB slots, time", samples, ours, theirs, 1 / 0.8)
        for ours, theirs in (("copy_in", "memcpy in"), ("copy_out", "memcpy out"))
    ]
