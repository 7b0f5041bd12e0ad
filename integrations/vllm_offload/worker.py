# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A worker's side: jobs of vLLM become copies between its KV cache and its part of the slots."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, LoadStoreSpec

from radixshmem import RadixClient, RadixError, SlotStore

from .copies import Copier, HostCopier, Outcome, Part, Transfer
from .copy_cuda import BUFFER_BYTES, CudaCopier
from .device import TorchCuda
from .groups import GroupMap
from .transfer import SlotSpec, life_of

__all__ = ["RadixShmemWorker"]

_log = logging.getLogger("radixshmem.vllm")
_abandoned: list[object] = []  # what a GPU still uses when its worker has gone


class _GroupCopy:
    """Where a block of a group is: a fragment of each tensor that holds a part of it.

    Fragments that lie together in every block are one.
    """

    def __init__(self, caches: CanonicalKVCaches, index: int) -> None:
        fragments: list[tuple[int, int, int]] = []  # base, stride, size
        for ref in caches.group_data_refs[index]:
            tensor = caches.tensors[ref.tensor_idx].tensor
            begin, stride = tensor.data_ptr(), tensor.stride(0) * tensor.element_size()
            size = ref.page_size_bytes
            if fragments:
                before, its_stride, its_size = fragments[-1]
                if its_stride == stride and before + its_size == begin:
                    fragments.pop()
                    begin, size = before, its_size + size
            fragments.append((begin, stride, size))
        columns = np.array(fragments, np.uint64).reshape(-1, 3).T  # none: no layer on this rank
        self._bases, self._strides, self.sizes = map(np.ascontiguousarray, columns)

    def addresses(self, blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.uint64]:
        """Where the fragments of the blocks are, shape [blocks x fragments], row by row."""
        rows = self._bases + blocks.astype(np.uint64)[:, None] * self._strides
        return rows.reshape(-1)


class RadixShmemWorker(base.OffloadingWorker):
    """vLLM's OffloadingWorker. Used by one thread.

    vLLM does not know failed transfers: they are reported as done, and what failed is told by the
    connector, which takes `take_failed_loads` and `take_failed_slots`. A slot of a failed store
    that a GPU may still write is also among `take_late_slots`, and later among `take_ended_slots`;
    it must not be used for anything else between the two.
    """

    def __init__(
        self,
        client: RadixClient,
        groups: GroupMap,
        rank: int,
        caches: CanonicalKVCaches,
        timeout_s: float = 60.0,
        copier: Copier | None = None,
    ) -> None:
        self._client = client
        self._groups = groups
        self._rank = rank
        self._copies = [_GroupCopy(caches, i) for i in range(len(groups.groups))]
        self._copier = copier or _copier(caches, timeout_s)
        self._store: SlotStore | None = None
        self._life = 0  # of _store, which does not tell it any more once it is closed
        self._refused: list[base.TransferResult] = []
        self.failed_loads: dict[int, str] = {}  # request of each job
        self._failed_slots: set[tuple[int, int]] = set()
        self.has_slot_news = False  # there are late or ended slots to take
        self._late_slots: set[tuple[int, int, int]] = set()
        self._ended_slots: set[tuple[int, int, int]] = set()
        if client.store is not None:
            self._copier.attach(client.store)

    @property
    def nonce(self) -> int:
        """Of the server's life that its client has attached to."""
        return life_of(self._client)

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        assert isinstance(dst_spec, SlotSpec)
        self._start(job_id, src_spec, dst_spec, is_store=True)
        return True

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,
    ) -> bool:
        assert isinstance(src_spec, SlotSpec)
        self._start(job_id, dst_spec, src_spec, is_store=False)
        return True

    def _start(self, job_id: int, gpu: GPULoadStoreSpec, slots: SlotSpec, is_store: bool) -> None:
        parts = list(self._parts(gpu, slots))
        request = slots.request
        try:
            store = self._store_of(slots.life)
            self._copier.start(Transfer(job_id, is_store, store, parts, request))
        except (RadixError, IndexError, ValueError) as error:
            self._refused.append(base.TransferResult(job_id, True, 0, 0.0))
            self._note_failure(job_id, is_store, parts, request, str(error))

    def _store_of(self, life: int) -> SlotStore:
        """The slots of that life of the server. RadixError when it has ended."""
        if self._store is None or life != self._life:
            with contextlib.suppress(RadixError):  # a thread is told once that its server went
                self._client.mempool_free()
            self._store = self._client.store
            self._life = life_of(self._client)
        if self._store is None or life != self._life:
            raise RadixError("the slots are of a server that was closed or replaced")
        return self._store

    def _parts(self, gpu: GPULoadStoreSpec, slots: SlotSpec) -> Iterator[Part]:
        """The blocks of each group, and their slots."""
        begin = 0
        sizes = gpu.group_sizes
        for group, copy, size in zip(self._groups.groups, self._copies, sizes, strict=True):
            end = begin + size
            if size and group.bytes:  # some layer of the group is on this rank
                kind = group.component
                addresses = copy.addresses(gpu.block_ids[begin:end])
                yield Part(kind, slots.slots[begin:end], addresses, copy.sizes, group.offset)
            begin = end

    def get_finished(self) -> list[base.TransferResult]:
        done, self._refused = self._refused, []
        for outcome in self._copier.finished():
            transfer = outcome.transfer
            done.append(base.TransferResult(transfer.job_id, True, outcome.bytes, outcome.seconds))
            if outcome.error is not None:
                self._note_outcome(outcome, outcome.error)
        for transfer in self._copier.take_ended():
            if transfer.is_store:
                self._ended_slots |= self._of_rank(transfer.parts)
                self.has_slot_news = True
        return done

    def _note_outcome(self, outcome: Outcome, error: str) -> None:
        transfer = outcome.transfer
        self._note_failure(
            transfer.job_id, transfer.is_store, transfer.parts, transfer.request, error
        )
        if transfer.is_store and not outcome.ended:
            self._late_slots |= self._of_rank(transfer.parts)
            self.has_slot_news = True

    def _note_failure(
        self, job_id: int, is_store: bool, parts: list[Part], request: str, error: str
    ) -> None:
        what = "store" if is_store else "load"
        _log.warning("radixshmem: %s job %d failed: %s", what, job_id, error)
        if is_store:
            self._failed_slots |= {(kind, slot) for _, kind, slot in self._of_rank(parts)}
        else:
            self.failed_loads[job_id] = request

    def _of_rank(self, parts: list[Part]) -> set[tuple[int, int, int]]:
        return {(self._rank, part.kind, slot) for part in parts for slot in part.slots.tolist()}

    def wait(self, job_ids: set[int]) -> None:
        """Until they are over; one that is not at its deadline has failed."""
        self._copier.wait(job_ids)

    def take_failed_loads(self) -> dict[int, str]:
        """Jobs, and their requests."""
        failed, self.failed_loads = self.failed_loads, {}
        return failed

    def take_failed_slots(self) -> set[tuple[int, int]]:
        failed, self._failed_slots = self._failed_slots, set()
        return failed

    def take_late_slots(self) -> set[tuple[int, int, int]]:
        """(rank, component, slot)."""
        late, self._late_slots = self._late_slots, set()
        self.has_slot_news = bool(self._ended_slots)
        return late

    def take_ended_slots(self) -> set[tuple[int, int, int]]:
        """(rank, component, slot)."""
        ended, self._ended_slots = self._ended_slots, set()
        self.has_slot_news = bool(self._late_slots)
        return ended

    def shutdown(self) -> None:
        """Let the copies in flight end, then give up the mapping and the slots."""
        if self._copier.drain():
            self._client.close()
            return
        # Closing would give the slots to others. The end of the process will end the copies.
        _abandoned.extend((self._client, self._copier))
        _log.warning("radixshmem: copies have not ended; their slots stay taken with this process")


def _copier(caches: CanonicalKVCaches, timeout_s: float) -> Copier:
    devices = {tensor.tensor.device for tensor in caches.tensors}
    kinds = {device.type for device in devices}
    if kinds <= {"cpu"}:
        return HostCopier()
    if kinds != {"cuda"} or len(devices) != 1:
        raise ValueError(
            f"the KV cache is on {sorted(map(str, devices))}; radixshmem copies KV caches in host "
            "memory or on one CUDA device per worker"
        )
    return CudaCopier(TorchCuda(devices.pop()), timeout_s, buffer_bytes=BUFFER_BYTES)
