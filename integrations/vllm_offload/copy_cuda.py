# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Copies between a KV cache on a GPU and the slots. See lane.py for the order of things.

The slots are registered with CUDA in the background, from the first one on. Where that has come to
a slot, the GPU copies it by itself; the others, or all where registering failed, go through pinned
buffers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np

from radixshmem import RadixError, SlotStore
from radixshmem_core.cuda import CudaRegistration

from .copies import Outcome, Part, Transfer
from .device import Addresses, Device
from .lane import Fragments, Lane

__all__ = ["BUFFER_BYTES", "CudaCopier"]

BUFFER_BYTES = 32 << 20

_log = logging.getLogger("radixshmem.vllm")


class CudaCopier:
    """A Copier for a GPU: see copies.py. Used by one thread."""

    def __init__(
        self,
        device: Device,
        timeout_s: float,
        *,
        buffer_bytes: int = BUFFER_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device = device
        self._stores = Lane(device, True, buffer_bytes, timeout_s, clock)
        self._loads = Lane(device, False, buffer_bytes, timeout_s, clock)
        self._finished: list[Outcome] = []
        self._slots: _Slots | None = None

    def attach(self, store: SlotStore) -> None:
        if self._slots is None or self._slots.store is not store:
            self._slots = _Slots(store)

    def start(self, transfer: Transfer) -> None:
        lane = self._stores if transfer.is_store else self._loads
        try:
            self.attach(transfer.store)
            assert self._slots is not None
            direct, hold, bounced = self._slots.split(transfer.parts)
        except (RadixError, IndexError, ValueError) as error:
            lane.fail(transfer, str(error))
            return
        lane.start(transfer, direct, hold, bounced)

    def finished(self) -> list[Outcome]:
        self._collect()
        finished, self._finished = self._finished, []
        return finished

    def take_ended(self) -> list[Transfer]:
        return self._stores.take_ended() + self._loads.take_ended()

    def wait(self, job_ids: set[int]) -> None:
        self._wait(job_ids)

    def drain(self) -> bool:
        self._wait(None)
        self.take_ended()
        return not (self._stores.late or self._loads.late)

    def _wait(self, job_ids: set[int] | None) -> None:
        while True:
            self._collect()
            if not (self._stores.runs_any(job_ids) or self._loads.runs_any(job_ids)):
                return
            self._device.pause()

    def _collect(self) -> None:
        self._finished += self._stores.collect() + self._loads.collect()


class _Slots:
    """The slots of one store, as a GPU sees them."""

    def __init__(self, store: SlotStore) -> None:
        self.store = store
        self._base = np.frombuffer(store.data_view(), np.uint8).ctypes.data
        self._registration: CudaRegistration | None = None
        try:
            self._registration = store.register_cuda()
        except RadixError as error:
            _log.warning("radixshmem: all copies go through buffers: %s", error)

    def split(self, parts: list[Part]) -> tuple[list[Fragments], object, list[Part]]:
        """What the GPU copies by itself, what keeps the slots of that, and the rest."""
        begins = [self._begins(part) for part in parts]
        ends = [b + np.uint64(part.slot_bytes) for b, part in zip(begins, parts, strict=True)]
        registered = self._registration.registered_bytes if self._registration is not None else 0
        direct_rows = [end <= registered for end in ends]
        last = max(
            (int(e[rows].max(initial=0)) for e, rows in zip(ends, direct_rows, strict=True)),
            default=0,
        )
        hold = None
        if self._registration is not None and last > 0:
            hold = self._registration.hold(last)
        if hold is None:  # none of them, or it was given up in this moment
            return [], None, [part for part in parts if len(part.slots)]
        base = np.uint64(self._base)
        direct, bounced = [], []
        for part, begin, rows in zip(parts, begins, direct_rows, strict=True):
            if rows.any():
                direct.append(Fragments.of(part[rows], base + begin[rows]))
            if not rows.all():
                bounced.append(part[~rows])
        return direct, hold, bounced

    def _begins(self, part: Part) -> Addresses:
        """Where the bytes begin in the data of the store. IndexError, ValueError."""
        stride = self.store.pool(part.kind).slot_bytes
        if part.offset + part.slot_bytes > stride:
            raise ValueError(
                f"{part.slot_bytes} bytes at byte {part.offset} do not fit a slot of {stride}"
            )
        if len(part.slots):
            for slot in (part.slots.min(), part.slots.max()):
                self.store.slot_offset(int(slot), part.kind)
        first = self.store.slot_offset(0, part.kind) + part.offset
        return part.slots.astype(np.uint64) * np.uint64(stride) + np.uint64(first)
