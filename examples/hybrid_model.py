# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A model with full attention, sliding-window attention and mamba layers: three pools, one tree.

python examples/hybrid_model.py
"""

from __future__ import annotations

import os

from radixshmem import (
    COMPONENT_MASK_FULL,
    COMPONENT_MASK_MAMBA,
    COMPONENT_MASK_SWA,
    ComponentType,
    Geometry,
    RadixClient,
    RadixServer,
    ServerConfig,
    compute_hashes,
)

WINDOW_BLOCKS = 4
GEOMETRY = Geometry(
    block_size=16,
    full_slot_bytes=8192,
    swa_slot_bytes=2048,
    swa_window_blocks=WINDOW_BLOCKS,
    mamba_slot_bytes=16384,
)
EVERYTHING = COMPONENT_MASK_FULL | COMPONENT_MASK_SWA | COMPONENT_MASK_MAMBA


def main() -> None:
    name = f"/hybrid_model_{os.getpid()}"
    config = ServerConfig(name, data_bytes="16M", swa_ratio=0.2, mamba_ratio=0.1)
    with RadixServer(config), RadixClient(name, GEOMETRY) as client:
        hashes = compute_hashes(range(12 * 16), 16)
        client.insert(hashes, client.allocate_slots(len(hashes)))

        # The last window and the state after the last block: what generation goes on from.
        window = client.allocate_slots(WINDOW_BLOCKS, ComponentType.SWA)
        client.insert(hashes, window, component=ComponentType.SWA)
        checkpoint = client.allocate_slots(1, ComponentType.MAMBA)
        client.insert(hashes, checkpoint, component=ComponentType.MAMBA)

        longer = compute_hashes(range(20 * 16), 16)
        hit = client.query(longer, EVERYTHING, lock=True)
        print(f"{hit.common_hit} blocks can be reused")
        print(f"window: blocks {hit.swa_start} to {hit.common_hit - 1}, slots {hit.swa_slots}")
        assert hit.mamba is not None
        print(f"mamba state in slot {hit.mamba[1]} of rank {hit.mamba[0]}")
        hit.finalize()

        # Where only a part of the prompt is shared, the window at its end is missing.
        assert client.query(hashes[:9], EVERYTHING).common_hit == 0
        assert client.query(hashes[:9], COMPONENT_MASK_FULL).common_hit == 9


if __name__ == "__main__":
    main()
