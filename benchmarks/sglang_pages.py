# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Rows of SGLang's copies: batches of pages from its host pool to the storage, and back."""

from __future__ import annotations

import ctypes
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from rows import Row, Samples, bounded, interleave
from sglang.srt.mem_cache.hicache_storage import HiCacheFile
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang_rig import PAGE_TOKENS, Controller, host_pool, page_keys, radix_storage, storage_config

from radixshmem import RadixClient

__all__ = ["page_rows"]

_BATCH = 128  # pages: what SGLang hands over at once
_CALLS = 5  # per sample
_POOL_BYTES = 128 << 20  # more than a processor's caches hold
_STORE_BYTES = 2 * _POOL_BYTES
_FILE_FOLDER = "/dev/shm"
_OURS, _FILE = "radixshmem", "SGLang's file backend on tmpfs"
_MEMCPY, _ONE_MEMCPY = "memcpy of a page's pieces", "one memcpy"
_MEMCPY_C = ctypes.CDLL(None).memcpy
_MEMCPY_C.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def page_rows(rounds: int) -> list[Row]:
    """Whole calls of SGLang, beside memcpy between the same buffers and SGLang's own files."""
    return [
        *_rows("1 MiB", 1 << 20, rounds, 0.8, 1.3),
        *_rows("64 KiB", 64 << 10, rounds, 0.5, 1.2),
    ]


def _rows(
    size: str, page_bytes: int, rounds: int, memcpy_rate: float, load_rate: float
) -> list[Row]:
    """`memcpy_rate`, `load_rate`: times the rate of memcpy, and of loading files."""
    pool = host_pool(page_bytes, _POOL_BYTES // page_bytes)
    with (
        radix_storage(pool, _STORE_BYTES) as (storage, client),
        tempfile.TemporaryDirectory(prefix="radix_bench_", dir=_FILE_FOLDER) as folder,
    ):
        files = HiCacheFile(storage_config(), folder)
        ours = Controller(storage, pool, zero_copy=True)
        theirs = Controller(files, pool, zero_copy=False)
        pages = _Pages(pool, page_bytes)
        slots = _slot_addresses(client)
        pages.touch_slots(ours)
        for controller in (ours, theirs):
            pages.store_all(controller)
        pages.check_load(ours)
        loads = interleave(
            rounds,
            {
                _OURS: pages.load(ours),
                _MEMCPY: pages.memcpy(slots, out=True),
                _ONE_MEMCPY: pages.one_memcpy(min(slots), out=True),
                _FILE: pages.load(theirs),
            },
        )
        files.clear()
        stores = interleave(
            rounds,
            {
                _OURS: pages.store(ours),
                _MEMCPY: pages.memcpy(slots, out=False),
                _ONE_MEMCPY: pages.one_memcpy(min(slots), out=False),
                _FILE: pages.store(theirs, and_then=files.clear),
            },
        )
    return [
        *_beside(f"SGLang: store {_BATCH} pages of {size}, time", stores, memcpy_rate, 3.0),
        *_beside(f"SGLang: load {_BATCH} pages of {size}, time", loads, memcpy_rate, load_rate),
    ]


def _beside(figure: str, samples: Samples, memcpy_rate: float, file_rate: float) -> list[Row]:
    """At least x times the rate is at most 1/x of the time."""
    rates = {_MEMCPY: memcpy_rate, _ONE_MEMCPY: memcpy_rate, _FILE: file_rate}
    return [
        bounded(f"{figure}, against {peer}", samples, _OURS, peer, 1 / rate)
        for peer, rate in rates.items()
    ]


def _slot_addresses(client: RadixClient) -> list[int]:
    store = client.store
    assert store is not None
    return [
        np.frombuffer(store.slot_view(slot), np.uint8).ctypes.data
        for slot in range(client.mempool_total())
    ]


class _Pages:
    """All pages of a host pool, in batches that take turns: none is in a cache from its last."""

    def __init__(self, pool: MHATokenToKVPoolHost, page_bytes: int) -> None:
        self._pool = pool
        self._page_bytes = page_bytes
        indices = pool.alloc(pool.page_num * PAGE_TOKENS)
        assert indices is not None
        self._batches: list[torch.Tensor] = list(indices.split(_BATCH * PAGE_TOKENS))
        self._keys = [page_keys(f"batch {i}", _BATCH) for i in range(len(self._batches))]
        self._numbers = itertools.count()

    def touch_slots(self, controller: Controller) -> None:
        """Let each slot be mapped: the first write of a process to it is slow, once."""
        for batch in self._batches * (_STORE_BYTES // _POOL_BYTES + 1):
            controller.set(self._new_keys(), batch)

    def store_all(self, controller: Controller) -> None:
        for keys, batch in zip(self._keys, self._batches, strict=True):
            controller.set(keys, batch)

    def check_load(self, controller: Controller) -> None:
        """RuntimeError unless all pages come back as they were."""
        before = self._pool.kv_buffer.clone()
        self._pool.kv_buffer.zero_()
        for keys, batch in zip(self._keys, self._batches, strict=True):
            controller.get(keys, batch)
        if not torch.equal(self._pool.kv_buffer.view(torch.int16), before.view(torch.int16)):
            raise RuntimeError("pages came back from the storage with other bytes")

    def load(self, controller: Controller) -> Callable[[], float]:
        """Seconds of loading a batch that is stored, into the pages of another."""
        sources = itertools.cycle(self._keys)
        targets = itertools.cycle(self._batches[::-1])

        def measure() -> float:
            keys, target = next(sources), next(targets)
            return _timed(lambda: controller.get(keys, target))

        return self._sampled(measure)

    def store(
        self, controller: Controller, and_then: Callable[[], object] = lambda: None
    ) -> Callable[[], float]:
        """Seconds of storing a batch under keys that are new: the store is full, so others go."""
        sources = itertools.cycle(self._batches)

        def measure() -> float:
            keys, source = self._new_keys(), next(sources)
            seconds = _timed(lambda: controller.set(keys, source))
            and_then()
            return seconds

        return self._sampled(measure)

    def _new_keys(self) -> list[str]:
        return page_keys(f"new {next(self._numbers)}", _BATCH)

    def _sampled(self, measure: Callable[[], float]) -> Callable[[], float]:
        """The median of some calls where one is short, since other processes interrupt some."""
        calls = min(len(self._batches), _CALLS)
        return lambda: statistics.median(measure() for _ in range(calls))

    def memcpy(self, slots: list[int], *, out: bool) -> Callable[[], float]:
        """Seconds of memcpy between the pieces of a batch and slots, without those of its calls."""
        turns = itertools.cycle(
            [self._pieces(slots, i, out=out) for i in range(len(self._batches))]
        )
        size = self._page_bytes // 2

        def measure() -> float:
            pieces = next(turns)
            return _timed(lambda: _memcpy(pieces, size)) - _timed(lambda: _memcpy(pieces, 0))

        return self._sampled(measure)

    def _pieces(self, slots: list[int], number: int, *, out: bool) -> list[tuple[int, int]]:
        pointers, sizes = self._pool.get_page_buffer_meta(self._batches[number])
        half = self._page_bytes // 2
        if sizes != [half] * (2 * _BATCH):
            raise RuntimeError(f"a page of SGLang's pool is not two pieces of {half} bytes")
        own = slots[number * _BATCH : (number + 1) * _BATCH]
        places = [slot + offset for slot in own for offset in (0, half)]
        return list(
            zip(pointers, places, strict=True) if out else zip(places, pointers, strict=True)
        )

    def one_memcpy(self, slots: int, *, out: bool) -> Callable[[], float]:
        """Seconds of as many bytes at once, which some C libraries copy in a quicker way."""
        size = _BATCH * self._page_bytes
        host = self._pool.kv_buffer.data_ptr()
        begins = itertools.cycle(range(0, _POOL_BYTES, size))

        def measure() -> float:
            begin = next(begins)
            pair = (host + begin, slots + begin)
            return _timed(lambda: _memcpy([pair if out else pair[::-1]], size))

        return self._sampled(measure)


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _memcpy(pairs: list[tuple[int, int]], size: int) -> None:
    for target, source in pairs:
        _MEMCPY_C(target, source, size)
