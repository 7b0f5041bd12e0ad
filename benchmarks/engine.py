# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A stand-in for an inference engine: it serves requests of a trace from the shared cache.

Per request: pull and pin the cached prefix, copy it out and check every byte, "compute" the rest,
store what fits, let the pins go. One engine runs per process; nothing here is shared but the cache.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
from engine_numbers import EngineNumbers
from payload import block_bytes, block_tokens, count_wrong_bytes
from traces import Trace

import radixshmem

__all__ = ["Engine"]

_BATCH_BLOCKS = 64  # blocks copied and checked at a time: stays in the processor's cache
_PULL_TIMEOUT_S = 30.0


class Engine:
    """Serves requests of `trace` through `client`, whose blocks hold `slot_bytes`."""

    def __init__(
        self,
        client: radixshmem.RadixClient,
        trace: Trace,
        slot_bytes: int,
        *,
        look_at_peers: bool = False,
    ) -> None:
        """`look_at_peers`: ask first where the blocks are, as a router would."""
        self._look_at_peers = look_at_peers
        self.numbers = EngineNumbers()
        if client.store is None:
            raise ValueError(f"{client.name} is an index without slots; an engine needs both")
        self._client = client
        self._slots = client.store
        self._trace = trace
        self._slot_bytes = slot_bytes
        self._buffer = np.zeros((_BATCH_BLOCKS, slot_bytes), np.uint8)
        self._scratch = np.empty_like(self._buffer)
        first = self._buffer.ctypes.data
        self._rows = first + np.arange(_BATCH_BLOCKS, dtype=np.uint64) * np.uint64(slot_bytes)
        self._size = np.array([slot_bytes], np.uint64)

    def serve(self, request: int) -> None:
        """One request of the trace, from lookup to stored blocks."""
        numbers = self.numbers
        tokens = block_tokens(self._trace.path(request), self._trace.block_tokens)
        hashes = radixshmem.compute_hashes(tokens, self._trace.block_tokens)
        if self._look_at_peers:
            self._client.query(hashes)
        begin = time.perf_counter()
        result = self._client.pull_async(hashes, lock=True).wait(_PULL_TIMEOUT_S)
        numbers.query_s.append(time.perf_counter() - begin)
        if result.remote_blocks:
            numbers.remote += result.remote_blocks
            numbers.remote_bytes += result.remote_bytes
            numbers.remote_s += numbers.query_s[-1]
        try:
            hit = result.common_hit
            self._check(hashes[:hit], result.full_slots)
            self._store(hashes, hit)
            if self._look_at_peers:
                self._client.flush(0)  # as the adapters do: peers need not wait for a chunk
        finally:
            result.finalize()
        numbers.requests += 1
        numbers.referenced += len(hashes)
        numbers.hit += hit

    def _check(self, hashes: npt.NDArray[np.uint64], slots: npt.NDArray[np.int32]) -> None:
        """Copy pinned slots out and compare each byte with what its block must hold."""
        numbers = self.numbers
        for start in range(0, len(hashes), _BATCH_BLOCKS):
            batch = hashes[start : start + _BATCH_BLOCKS]
            batch_slots = slots[start : start + len(batch)]
            begin = time.perf_counter()
            copied = self._slots.copy_out(batch_slots, self._rows[: len(batch)], self._size)
            numbers.copy_out_s += time.perf_counter() - begin
            numbers.copied_out_bytes += copied
            wrong = count_wrong_bytes(self._buffer[: len(batch)], batch, self._scratch)
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                numbers.wrong_bytes += int(wrong.sum())
                numbers.first_wrong = numbers.first_wrong or (
                    f"{wrong[row]} of {self._slot_bytes} bytes differ in slot {batch_slots[row]}, "
                    f"block {start + row} of its path, hash {int(batch[row]):#018x}"
                )

    def _store(self, hashes: npt.NDArray[np.uint64], hit: int) -> None:
        """Store the blocks behind the hit, as many as there are slots for."""
        numbers = self.numbers
        wanted = min(len(hashes) - hit, self._client.mempool_total())
        if wanted == 0:
            return
        begin = time.perf_counter()
        slots = self._client.allocate_slots(wanted)
        numbers.allocate_s.append(time.perf_counter() - begin)
        numbers.not_stored += len(hashes) - hit - len(slots)
        if len(slots) == 0:
            return
        computed = hashes[hit : hit + len(slots)]
        for start in range(0, len(slots), _BATCH_BLOCKS):
            batch = computed[start : start + _BATCH_BLOCKS]
            block_bytes(batch, self._slot_bytes, self._buffer)
            begin = time.perf_counter()
            numbers.copied_in_bytes += self._slots.copy_in(
                slots[start : start + len(batch)], self._rows[: len(batch)], self._size
            )
            numbers.copy_in_s += time.perf_counter() - begin
        begin = time.perf_counter()
        outcome = self._client.insert(hashes[: hit + len(slots)], slots, hit)
        numbers.insert_s.append(time.perf_counter() - begin)
        error = radixshmem.InsertError(outcome.error)
        if error != radixshmem.InsertError.OK:
            numbers.refused[error.name] = numbers.refused.get(error.name, 0) + 1
        if error in (radixshmem.InsertError.BAD_REQUEST, radixshmem.InsertError.BUSY):
            self._client.recycle_slots(slots)  # such a refusal leaves them with the caller
        else:
            numbers.inserted += len(slots) - len(outcome.unused_slots)
