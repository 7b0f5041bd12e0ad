# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The SlotStore of the unit tests: 10 FULL slots of 1,024 bytes, 3 MAMBA slots of 5,120."""

from __future__ import annotations

from typing import Any

from radixshmem_core.store import SlotPoolConfig, SlotStoreConfig
from radixshmem_core.values import ComponentType

FULL, SWA, MAMBA = ComponentType
FULL_POOL = SlotPoolConfig(10, 1000)
MAMBA_POOL = SlotPoolConfig(3, 5000)


def store_config(name: str, **changes: Any) -> SlotStoreConfig:
    fields: dict[str, Any] = {"full": FULL_POOL, "mamba": MAMBA_POOL, "slot_align": 512}
    return SlotStoreConfig(name, **(fields | changes))
