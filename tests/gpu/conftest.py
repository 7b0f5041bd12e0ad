# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Tests for one real GPU, about a minute: `pytest -s -W ignore tests/gpu` shows the bandwidths.

test_copies.py needs an environment with vLLM for CUDA and a wheel of this project.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixshmem_core.store import SlotPoolConfig, SlotStore, SlotStoreConfig

_FOLDER = Path(__file__).parent
SLOT_BYTES = 1 << 20
SLOTS = 1024


def _missing() -> str:
    """Why there is no GPU to test with; empty: there is one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no CUDA driver: {error}"
    devices = ctypes.c_int(0)
    for code in (driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(devices))):
        if code != 0:
            return f"the CUDA driver says {code}"
    return "" if devices.value else "no CUDA device"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if _FOLDER in item.path.parents]
    reason = _missing() if ours else ""
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def store(region_name: str) -> Iterator[SlotStore]:
    """1 GiB of slots."""
    config = SlotStoreConfig(region_name, full=SlotPoolConfig(SLOTS, SLOT_BYTES))
    with SlotStore.create(config) as made:
        yield made
    SlotStore.destroy(region_name)
