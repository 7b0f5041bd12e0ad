# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""One process: start a server, store the blocks of a prompt, find them again.

python examples/quickstart.py
"""

from __future__ import annotations

import os

import numpy as np

from radixshmem import Geometry, RadixClient, RadixServer, ServerConfig, compute_hashes

BLOCK_TOKENS = 16
SLOT_BYTES = 8192


def block_bytes(number: int) -> bytes:
    """Stands for the KV cache of one block."""
    return bytes([number]) * SLOT_BYTES


def main() -> None:
    name = f"/quickstart_{os.getpid()}"
    geometry = Geometry(BLOCK_TOKENS, SLOT_BYTES, fingerprint="demo-model@1")
    with (
        RadixServer(ServerConfig(name, data_bytes="16M")),
        RadixClient(name, geometry) as client,
    ):
        prompt = np.arange(20 * BLOCK_TOKENS)
        hashes = compute_hashes(prompt, BLOCK_TOKENS)

        # Nothing is cached yet: compute the blocks, write them into slots, publish them.
        assert client.query(hashes).common_hit == 0
        slots = client.allocate_slots(len(hashes))
        for number, slot in enumerate(slots):
            client.slot_view(slot)[:SLOT_BYTES] = block_bytes(number)
        result = client.insert(hashes, slots)
        print(f"inserted blocks {result.landed[0]} to {result.landed[1] - 1}")

        # A longer prompt with the same beginning. The pin keeps the bytes while they are read.
        longer = compute_hashes(np.append(prompt, [7] * 80), BLOCK_TOKENS)
        hit = client.query(longer, lock=True)
        for number, slot in enumerate(hit.full_slots):
            assert client.slot_view(slot)[:SLOT_BYTES] == block_bytes(number)
        hit.finalize()
        print(f"found {hit.common_hit} of {len(longer)} blocks")
        print(f"{client.mempool_used()} of {client.mempool_total()} slots are in use")


if __name__ == "__main__":
    main()
