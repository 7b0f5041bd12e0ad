# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_cuda import cuda_driver, fake_cuda
from unit.stores import store_config

from radixshmem_core.store import SlotStore

__all__ = ["cuda_driver", "fake_cuda", "reader", "store"]


@pytest.fixture
def store(region_name: str) -> Iterator[SlotStore]:
    with SlotStore.create(store_config(region_name, nonce=2**63 + 5)) as made:
        yield made
    SlotStore.destroy(region_name)


@pytest.fixture
def reader(store: SlotStore) -> Iterator[SlotStore]:
    with SlotStore.attach(store.name, read_only=True) as attached:
        yield attached
