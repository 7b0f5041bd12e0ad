# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""SlotStore: the mapped region that holds the bytes of all slots, and views into it.

Views are memoryviews straight into shared memory. `close()` releases those that it handed out;
where numpy, torch or a slice of a view still needs the bytes, they stay mapped until it is gone.
Nothing here is registered with multiprocessing's resource tracker: only `destroy` deletes a region.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from operator import index
from typing import Any, SupportsInt

import numpy.typing as npt
from typing_extensions import Buffer

from radixshmem_core import _core
from radixshmem_core._core import ComponentType

from .arrays import as_hashes, as_int, as_slots, is_plain
from .cuda import CudaRegistration

__all__ = ["SlotPoolConfig", "SlotStore", "SlotStoreConfig"]

Kind = SupportsInt | enum.Enum
"""A component: an int, ComponentType, or any enum that stands for an int."""

_PREFAULT_CHUNK_BYTES = 64 << 20
_MAX_PREFAULT_THREADS = 16
_MIN_PRUNE = 1024


@dataclass(frozen=True, slots=True)
class SlotPoolConfig:
    """Size of one pool. In what `SlotStore.pool` returns, slot_bytes is the stride."""

    num_slots: int
    slot_bytes: int


@dataclass(frozen=True, slots=True)
class SlotStoreConfig:
    """What `SlotStore.create` makes. Pools that are None do not exist."""

    name: str  # "/" and a file name
    _: dataclasses.KW_ONLY
    full: SlotPoolConfig | None = None
    swa: SlotPoolConfig | None = None
    mamba: SlotPoolConfig | None = None
    slot_align: int = 4096  # bytes; strides are multiples of it
    hugepage_path: str = ""  # a hugetlbfs mount; empty: /dev/shm
    prefault: bool = True  # map all pages before create returns
    mode: int = 0o600
    gid: int = -1  # -1: the group of the process
    nonce: int = 0  # names this life of the region


class SlotStore:
    """A mapped SlotStore region; made by `create` or `attach`. Safe to use from several threads.

    A slot that the pool does not have is an IndexError, a pool that does not exist a ValueError,
    any use after `close` a RadixError.
    """

    def __init__(self, core: _core.SlotStore) -> None:
        self._core = core
        self._data = core.view(0, core.data_bytes)
        self._views: deque[weakref.ref[memoryview]] = deque()  # handed out, to release in close()
        self._prune_at = _MIN_PRUNE
        self._cuda: CudaRegistration | None = None
        self._cuda_lock = threading.Lock()
        # By component: offset of slot 0, number of slots, stride.
        self._pools: dict[Any, tuple[int, int, int]] = {
            kind: (core.slot_offset(0, kind), core.num_slots(kind), core.slot_bytes(kind))
            for kind in ComponentType
            if core.pool_mask >> kind & 1
        }

    @staticmethod
    def create(config: SlotStoreConfig) -> SlotStore:
        """Make a region, with all of its memory reserved. RadixError, naming the fix, when the
        name is taken or the memory is not there."""
        pools = [pool or SlotPoolConfig(0, 0) for pool in (config.full, config.swa, config.mamba)]
        store = SlotStore(
            _core.SlotStore.create(
                config.name,
                [_size("num_slots", pool.num_slots) for pool in pools],
                [_size("slot_bytes", pool.slot_bytes) for pool in pools],
                _size("slot_align", config.slot_align),
                config.hugepage_path,
                config.nonce,
                config.mode,
                config.gid,
            )
        )
        if config.prefault:
            try:
                store.prefault()
            except BaseException:
                store.close()
                SlotStore.destroy(config.name, config.hugepage_path)
                raise
        return store

    @staticmethod
    def attach(
        name: str, hugepage_path: str = "", timeout_ms: int = 1000, *, read_only: bool = False
    ) -> SlotStore:
        """Map an existing region, waiting up to `timeout_ms` for it to be there and complete.

        ServerNotReady at the deadline, GeometryMismatch for the layout of another version,
        RadixError for a file that is no SlotStore.
        """
        return SlotStore(_core.SlotStore.attach(name, hugepage_path, timeout_ms, read_only))

    @staticmethod
    def destroy(name: str, hugepage_path: str = "") -> bool:
        """Delete the region's file; who has it mapped keeps it. False when there was none."""
        return _core.SlotStore.destroy(name, hugepage_path)

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def pool_mask(self) -> int:
        """COMPONENT_MASK_* of the pools that exist."""
        return self._core.pool_mask

    @property
    def is_hugepage(self) -> bool:
        return self._core.is_hugepage

    @property
    def read_only(self) -> bool:
        return self._core.read_only

    @property
    def nonce(self) -> int:
        return self._core.nonce

    @property
    def data_bytes(self) -> int:
        """Length of `data_view()`."""
        return self._core.data_bytes

    def pool(self, kind: Kind) -> SlotPoolConfig:
        """Number of slots and stride of a pool."""
        _, num_slots, stride = self._pool(kind)
        return SlotPoolConfig(num_slots, stride)

    def data_view(self) -> memoryview:
        """All pools, in the order full, swa, mamba."""
        return self._hand_out(0, self._core.data_bytes)

    def pool_view(self, kind: Kind) -> memoryview:
        """All slots of one pool."""
        begin, num_slots, stride = self._pool(kind)
        return self._hand_out(begin, num_slots * stride)

    def slot_view(self, slot: int, kind: Kind = ComponentType.FULL) -> memoryview:
        """One slot: 1-D, format "B", stride long, writable unless attached read-only."""
        pool = self._pools.get(kind) or self._pool(kind)
        slot = index(slot)
        if not 0 <= slot < pool[1]:
            raise self._no_slot(slot, kind)
        stride = pool[2]
        begin = pool[0] + slot * stride
        try:
            view = self._data[begin : begin + stride]
        except ValueError:  # closed in this moment
            return self._hand_out(begin, stride)
        self._views.append(weakref.ref(view))
        if len(self._views) > self._prune_at:
            self._prune()
        return view

    def slot_offset(self, slot: int, kind: Kind = ComponentType.FULL) -> int:
        """Where the slot begins in `data_view()`."""
        begin, num_slots, stride = self._pool(kind)
        slot = index(slot)
        if not 0 <= slot < num_slots:
            raise self._no_slot(slot, kind)
        return begin + slot * stride

    def read_slot(self, slot: int, kind: Kind = ComponentType.FULL) -> bytes:
        """A copy of the whole slot."""
        self.slot_offset(slot, kind)
        return self._core.read_slot(slot, _number(kind))

    def write_slot(self, slot: int, data: Buffer, kind: Kind = ComponentType.FULL) -> None:
        """Copy `data`, at most a slot long, to the begin of the slot; the rest stays as it is."""
        self.slot_offset(slot, kind)
        self._core.write_slot(slot, data, _number(kind))

    def copy_in(
        self,
        slots: npt.ArrayLike,
        ptrs: npt.ArrayLike,
        sizes: npt.ArrayLike,
        *,
        kind: Kind = ComponentType.FULL,
        offset: int = 0,
    ) -> int:
        """Copy memory fragments into slots; returns the bytes copied.

        len(ptrs) is k * len(slots): k addresses per slot, row by row, written one after the other
        from byte `offset` of the slot. `sizes` (bytes) has as many entries, or k. All is checked
        before the first byte is copied, except that the addresses are valid.
        """
        return self._core.copy_in(*_fragments(slots, ptrs, sizes), _number(kind), offset)

    def copy_out(
        self,
        slots: npt.ArrayLike,
        ptrs: npt.ArrayLike,
        sizes: npt.ArrayLike,
        *,
        kind: Kind = ComponentType.FULL,
        offset: int = 0,
    ) -> int:
        """The inverse of `copy_in`: slots into memory fragments."""
        return self._core.copy_out(*_fragments(slots, ptrs, sizes), _number(kind), offset)

    def prefault(
        self, threads: int = 0, on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Map all pages, in parallel, without changing a byte; slots may be in use meanwhile.

        `threads` 0: one per CPU, 16 at most. `on_progress(done_bytes, total_bytes)` is called in
        this thread after each chunk; what it raises ends the work.
        """
        total = self._core.data_bytes
        cpus = len(os.sched_getaffinity(0))
        done = 0
        with ThreadPoolExecutor(
            threads or min(cpus, _MAX_PREFAULT_THREADS), thread_name_prefix="radixshmem-prefault"
        ) as pool:
            pending: dict[Future[None], int] = {}
            chunks = _chunks(total)
            try:
                while True:
                    for begin, end in chunks:
                        pending[pool.submit(self._core.prefault, begin, end)] = end - begin
                        if len(pending) >= 2 * _MAX_PREFAULT_THREADS:
                            break
                    if not pending:
                        return
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        future.result()
                        done += pending.pop(future)
                        if on_progress is not None:
                            on_progress(done, total)
            finally:
                for future in pending:
                    future.cancel()

    def register_cuda(self) -> CudaRegistration:
        """Register all slots with CUDA, in the background: a GPU then copies them by itself.

        The same registration is returned until it has failed; then the next call tries anew.
        RadixError at once when this process has no usable CUDA driver.
        """
        with self._cuda_lock:
            if self._cuda is None or self._cuda.error is not None:
                self._cuda = CudaRegistration(self._core)
            return self._cuda

    def unregister_cuda(self) -> None:
        """Give the registration up. What copies in flight use goes when they have ended."""
        with self._cuda_lock:
            registration, self._cuda = self._cuda, None
        if registration is not None:
            registration.stop()

    def close(self) -> None:
        """Release the views handed out and let go of the mapping. Idempotent."""
        self._pools = {}
        self.unregister_cuda()
        self._core.close()
        while self._views:
            with contextlib.suppress(BufferError, IndexError):  # still exported; another close()
                view = self._views.popleft()()
                if view is not None:
                    view.release()
        with contextlib.suppress(BufferError):
            self._data.release()

    def __enter__(self) -> SlotStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SlotStore {self.name}>"

    def _pool(self, kind: Kind) -> tuple[int, int, int]:
        number = _number(kind)
        found = self._pools.get(number)
        if found is None:
            self._core.num_slots(number)  # raises what is wrong
            raise AssertionError(f"unreachable: pool {number} of {self.name}")
        return found

    def _no_slot(self, slot: int, kind: Kind) -> IndexError:
        pool = ComponentType(_number(kind))
        last = self._pool(kind)[1] - 1
        return IndexError(
            f"slot {slot} is not in the {pool.name} pool of SlotStore {self.name}, "
            f"which has slots 0 to {last}"
        )

    def _hand_out(self, begin: int, length: int) -> memoryview:
        try:
            view = self._data[begin : begin + length]
        except ValueError:  # another thread closes
            _ = self._core.data_bytes  # raises that it is closed
            raise
        self._views.append(weakref.ref(view))
        return view

    def _prune(self) -> None:
        """Forget the views that are gone. Each step is atomic, so other threads may append."""
        with contextlib.suppress(IndexError):
            for _ in range(len(self._views)):
                reference = self._views.popleft()
                if reference() is not None:
                    self._views.append(reference)
        self._prune_at = max(_MIN_PRUNE, 2 * len(self._views))


def _chunks(total: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, total, _PREFAULT_CHUNK_BYTES):
        yield begin, min(begin + _PREFAULT_CHUNK_BYTES, total)


def _number(kind: Kind) -> int:
    try:
        return as_int(kind)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"kind = {kind!r} is no component: FULL=0, SWA=1, MAMBA=2, or an enum of these"
        ) from error


def _size(what: str, value: int) -> int:
    number = index(value)
    if not 0 <= number < 1 << 63:
        raise ValueError(f"{what} = {number} must be at least 0 and below 2**63")
    return number


def _fragments(slots: Any, ptrs: Any, sizes: Any) -> tuple[Any, Any, Any]:
    """What the core reads in place; it tells what else is wrong with it."""
    return (
        slots if is_plain(slots) else as_slots(slots),
        ptrs if is_plain(ptrs) else as_hashes(ptrs, "ptrs"),
        sizes if is_plain(sizes) else as_hashes(sizes, "sizes"),
    )
