# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A worker's side: copies between its KV cache and its part of the slots."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, LoadStoreSpec

from radixshmem import RadixClient, RadixError, SlotStore

from .groups import Group, GroupMap
from .transfer import SlotSpec

__all__ = ["RadixShmemWorker"]

_log = logging.getLogger("radixshmem.vllm")


class _GroupCopy:
    """How one block of a group is copied: a fragment of each tensor that holds a part of it."""

    def __init__(self, caches: CanonicalKVCaches, index: int) -> None:
        refs = caches.group_data_refs[index]
        tensors = [caches.tensors[ref.tensor_idx].tensor for ref in refs]
        self.sizes = np.array([ref.page_size_bytes for ref in refs], np.uint64)
        self._bases = np.array([tensor.data_ptr() for tensor in tensors], np.uint64)
        self._strides = np.array(
            [tensor.stride(0) * tensor.element_size() for tensor in tensors], np.uint64
        )

    def addresses(self, blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.uint64]:
        """Where the fragments of the blocks are, shape [blocks x fragments], row by row."""
        rows = self._bases + blocks.astype(np.uint64)[:, None] * self._strides
        return rows.reshape(-1)


class RadixShmemWorker(base.OffloadingWorker):
    """vLLM's OffloadingWorker for KV caches in host memory. Used by one thread.

    vLLM does not know failed transfers: they are reported as done, and what failed is told by the
    connector, which takes `take_failed_loads` and `take_failed_slots`.
    """

    def __init__(
        self, client: RadixClient, groups: GroupMap, rank: int, caches: CanonicalKVCaches
    ) -> None:
        devices = {tensor.tensor.device.type for tensor in caches.tensors}
        if devices != {"cpu"}:
            raise ValueError(
                f"the KV cache is on {sorted(devices)}; this version of radixshmem copies KV "
                "caches in host memory only"
            )
        self._client = client
        self._groups = groups
        self._part = rank if groups.copies > 1 else 0
        self._copies = [_GroupCopy(caches, i) for i in range(len(groups.groups))]
        for index, (group, copy) in enumerate(zip(groups.groups, self._copies, strict=True)):
            found = int(copy.sizes.sum())
            if found != group.bytes:
                raise ValueError(
                    f"KV cache group {index} has {found} bytes per block on rank {rank}, and the "
                    f"scheduler counted on {group.bytes}"
                )
        self._store: SlotStore | None = None
        self._life = 0
        self._done: list[base.TransferResult] = []
        self._failed_loads: set[int] = set()
        self._failed_slots: set[tuple[int, int]] = set()

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        assert isinstance(dst_spec, SlotSpec)
        if not self._transfer(job_id, src_spec, dst_spec, store=True):
            for group, _, slots, _ in self._by_group(src_spec, dst_spec):
                self._failed_slots.update((group.component, slot) for slot in slots.tolist())
        return True

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,
    ) -> bool:
        assert isinstance(src_spec, SlotSpec)
        if not self._transfer(job_id, dst_spec, src_spec, store=False):
            self._failed_loads.add(job_id)
        return True

    def _transfer(self, job_id: int, gpu: GPULoadStoreSpec, slots: SlotSpec, store: bool) -> bool:
        begin = time.perf_counter()
        copied = 0
        good = True
        try:
            copied = self._copy(gpu, slots, store)
        except (RadixError, IndexError, ValueError) as error:
            what = "store" if store else "load"
            _log.warning("radixshmem: %s job %d failed: %s", what, job_id, error)
            good = False
        took = time.perf_counter() - begin
        self._done.append(base.TransferResult(job_id, True, copied, took))
        return good

    def _copy(self, gpu: GPULoadStoreSpec, slots: SlotSpec, store: bool) -> int:
        region = self._region(slots.life)
        copied = 0
        move = region.copy_in if store else region.copy_out
        for group, copy, ids, blocks in self._by_group(gpu, slots):
            if len(ids) == 0:
                continue
            kind = group.component
            offset = self._part * self._groups.rank_bytes(kind) + group.offset
            copied += move(ids, copy.addresses(blocks), copy.sizes, kind=kind, offset=offset)
        return copied

    def _region(self, life: int) -> SlotStore:
        """The slots of that life of the server. RadixError when it has ended."""
        if self._store is None or life != self._life:
            with contextlib.suppress(RadixError):  # a thread is told once that its server went
                self._client.mempool_free()
            self._store = self._client.store
            self._life = self._store.nonce if self._store is not None else 0
        if self._store is None or life != self._life:
            raise RadixError("the slots are of a server that was closed or replaced")
        return self._store

    def _by_group(
        self, gpu: GPULoadStoreSpec, slots: SlotSpec
    ) -> Iterator[tuple[Group, _GroupCopy, npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
        """Slots and block ids of each group."""
        begin = 0
        sizes = gpu.group_sizes
        for group, copy, size in zip(self._groups.groups, self._copies, sizes, strict=True):
            end = begin + size
            yield group, copy, slots.slots[begin:end], gpu.block_ids[begin:end]
            begin = end

    def get_finished(self) -> list[base.TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is left to wait for: copies within host memory end before they are reported."""

    def take_failed_loads(self) -> set[int]:
        failed, self._failed_loads = self._failed_loads, set()
        return failed

    def take_failed_slots(self) -> set[tuple[int, int]]:
        failed, self._failed_slots = self._failed_slots, set()
        return failed

    def shutdown(self) -> None:
        self._client.close()
