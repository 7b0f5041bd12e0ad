# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A worker on a fake GPU, and what a test does with it and compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from e2e.vllm_offload.fake_gpu import FakeGpu
from fake_cuda import FakeCuda
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)

from radixshmem import ComponentType, Geometry, RadixClient
from radixshmem.integrations.vllm_offload.copy_cuda import CudaCopier
from radixshmem.integrations.vllm_offload.groups import GroupShape, map_groups
from radixshmem.integrations.vllm_offload.transfer import SlotSpec
from radixshmem.integrations.vllm_offload.worker import RadixShmemWorker
from radixshmem_core import cuda

FULL, SWA = ComponentType.FULL, ComponentType.SWA
BLOCKS = 64
PAGES = (96, 200)  # bytes of a block in each tensor; the cache has 8 more between two
RANK, RANKS = 1, 2
TIMEOUT_S = 30.0
STRIDE = 4096
DEADLINE_S = 60

Bytes = npt.NDArray[np.uint8]


class Rig:
    """A worker of rank 1 of 2 for two KV cache groups, FULL and SWA, on a fake GPU."""

    def __init__(self, name: str, driver: FakeCuda, seed: int = 0) -> None:
        size = sum(PAGES)
        shapes = [GroupShape("Full", FULL), GroupShape("Window", SWA, 64)]
        self.groups = map_groups(shapes, 32).placed([[size, size]] * RANKS, RANK)
        self.gpu = FakeGpu(driver, seed)
        self.caches = [torch.zeros((BLOCKS, page + 8), dtype=torch.int8) for page in PAGES * 2]
        self.gpu.cache = [(cache.data_ptr(), cache.numel()) for cache in self.caches]
        geometry = Geometry(
            32,
            self.groups.slot_bytes(FULL),
            swa_slot_bytes=self.groups.slot_bytes(SWA),
            swa_window_blocks=2,
        )
        self.scheduler = RadixClient(name, geometry, group="rig")
        self.client = RadixClient(name, geometry, group="rig")
        # Room for two slots in a buffer.
        self.copier = CudaCopier(
            self.gpu, TIMEOUT_S, buffer_bytes=2 * size, clock=lambda: self.gpu.now
        )
        refs = [
            [CanonicalKVCacheRef(2 * g + i, page) for i, page in enumerate(PAGES)] for g in (0, 1)
        ]
        tensors = [CanonicalKVCacheTensor(cache, cache.shape[1]) for cache in self.caches]
        self.worker = RadixShmemWorker(
            self.client, self.groups, RANK, CanonicalKVCaches(tensors, refs), TIMEOUT_S, self.copier
        )
        assert self.client.store is not None
        self.store = self.client.store
        self._dice = np.random.default_rng(seed)
        self._jobs = 0

    def close(self) -> None:
        for stream in [*self.gpu.streams, self.gpu.compute]:
            stream.hangs = False
        self.gpu.transfers_first()
        self.worker.shutdown()
        self.scheduler.close()

    @property
    def registration(self) -> cuda.CudaRegistration:
        """The worker's."""
        assert self.copier._slots is not None
        assert self.copier._slots._registration is not None
        return self.copier._slots._registration

    # What the engine computes, and what is in the slots, as [block, byte].

    def random(self, count: int) -> Bytes:
        return self._dice.integers(0, 256, (count, sum(PAGES)), dtype=np.uint8)

    def compute(self, group: int, blocks: Sequence[int], content: Bytes) -> None:
        """Have the GPU write blocks, when it comes to it."""
        self.gpu.compute.run(lambda: self.put(group, blocks, content))

    def put(self, group: int, blocks: Sequence[int], content: Bytes) -> None:
        begin = 0
        for cache, page in zip(self.caches[2 * group :], PAGES, strict=False):
            cache.numpy().view(np.uint8)[list(blocks), :page] = content[:, begin : begin + page]
            begin += page

    def cached(self, group: int, blocks: Sequence[int]) -> Bytes:
        tensors = zip(self.caches[2 * group : 2 * group + 2], PAGES, strict=True)
        return np.concatenate(
            [cache.numpy().view(np.uint8)[list(blocks), :page] for cache, page in tensors], axis=1
        )

    def stored(self, kind: ComponentType, slots: Sequence[int]) -> Bytes:
        size = sum(PAGES)
        rows = [self.store.slot_view(s, kind)[RANK * size : (RANK + 1) * size] for s in slots]
        return np.stack([np.frombuffer(row, np.uint8).copy() for row in rows])

    def fill(self, kind: ComponentType, slots: Sequence[int], content: Bytes) -> None:
        size = sum(PAGES)
        for slot, row in zip(slots, content, strict=True):
            self.store.slot_view(slot, kind)[RANK * size : (RANK + 1) * size] = row.tobytes()

    def slots(self, count: int, kind: ComponentType = FULL) -> list[int]:
        found = self.scheduler.allocate_slots(count, kind).tolist()
        assert len(found) == count
        return [int(slot) for slot in found]

    # Jobs: per group, blocks and slots.

    def submit(self, store: bool, *groups: tuple[Sequence[int], Sequence[int]]) -> int:
        both = [*groups, ([], [])][:2]
        self._jobs += 1
        gpu = GPULoadStoreSpec(
            [b for blocks, _ in both for b in blocks], [len(b) for b, _ in both], [0, 0]
        )
        ids = np.array([s for _, slots in both for s in slots], np.int32)
        spec = SlotSpec(ids, self.store.nonce, "request")
        if store:
            assert self.worker.submit_store(self._jobs, gpu, spec)
        else:
            assert self.worker.submit_load(self._jobs, spec, gpu)
        return self._jobs

    def finished(self) -> list[int]:
        results = self.worker.get_finished()
        assert all(result.success for result in results)
        return [result.job_id for result in results]

    def finish(self, go_on: Callable[[], None]) -> list[int]:
        """What is finished when the GPU has gone on for as long as there is something to do."""
        done = []
        for _ in range(1000):
            go_on()
            done += self.finished()
            if not any(s.operations for s in [*self.gpu.streams, self.gpu.compute]):
                return done
        raise AssertionError("the GPU and the worker wait for each other")
