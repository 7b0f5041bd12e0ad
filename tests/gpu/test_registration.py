# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Slots are registered with a real driver. Needs neither PyTorch nor vLLM."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator

import numpy as np
import pytest

from radixshmem_core import cuda
from radixshmem_core.store import SlotStore

DEADLINE_S = 120
_MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE
_HOST = 1  # CU_MEMORYTYPE_HOST


@pytest.fixture
def driver() -> Iterator[ctypes.CDLL]:
    """With the primary context of device 0 current in this thread."""
    found = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert found.cuInit(0) == 0
    assert found.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert found.cuCtxSetCurrent(context) == 0
    yield found
    assert found.cuCtxSetCurrent(None) == 0
    assert found.cuDevicePrimaryCtxRelease_v2(0) == 0


def registered(driver: ctypes.CDLL, store: SlotStore, offset: int) -> bool:
    """Whether the driver knows of what kind the memory is."""
    base = int(np.frombuffer(store.data_view(), np.uint8).ctypes.data)
    kind = ctypes.c_uint()
    code = driver.cuPointerGetAttribute(
        ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_uint64(base + offset)
    )
    return int(code) == 0 and kind.value == _HOST


def test_all_slots_are_registered_and_given_back(store: SlotStore, driver: ctypes.CDLL) -> None:
    offsets = [0, store.data_bytes // 2, store.data_bytes - 4096]
    assert not any(registered(driver, store, offset) for offset in offsets)
    begin = time.perf_counter()
    store.register_cuda().wait(DEADLINE_S)
    took = time.perf_counter() - begin
    print(f"registered {store.data_bytes >> 20} MiB in {took:.2f} s")
    assert all(registered(driver, store, offset) for offset in offsets)
    store.write_slot(3, b"still writable")
    store.unregister_cuda()
    assert not any(registered(driver, store, offset) for offset in offsets)
    store.register_cuda().wait(DEADLINE_S)


def test_it_registers_without_a_context_of_the_caller(store: SlotStore) -> None:
    registration = store.register_cuda()
    registration.wait(DEADLINE_S)
    assert registration.registered_bytes == store.data_bytes


def test_closing_in_the_middle_leaves_nothing_behind(
    store: SlotStore, driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "_CHUNK_BYTES", 1 << 20)
    registration = store.register_cuda()
    store.close()
    assert registration.done()
    assert registration.registered_bytes == 0
