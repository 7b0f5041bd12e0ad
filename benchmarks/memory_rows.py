# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Rows of memory: bytes of index in use per cached block, as `radix-server status` counts them."""

from __future__ import annotations

import numpy as np
from index_rows import fill, index_server
from rows import Row
from server_process import server_status
from workload import Workload

import radixshmem

__all__ = ["memory_rows"]

_SINGLE_BLOCKS = 200_000


def memory_rows(load: Workload) -> list[Row]:
    """The workload, and paths of one block; segments, table and owner words in use."""
    with index_server("memory", load.distinct_blocks()) as client:
        fill(client, load)
        rows = [_row("index bytes in use per block, long conversations", client, 24.0)]
    with index_server("single", _SINGLE_BLOCKS) as client:
        random = np.random.default_rng(6)
        hashes = random.integers(1, 2**63 - 1, (_SINGLE_BLOCKS, 1), dtype=np.uint64)
        for path, slot in zip(hashes, client.allocate_slots(_SINGLE_BLOCKS), strict=True):
            client.insert(path, np.array([slot]))
        rows.append(_row("index bytes in use per block, single-block paths", client, 96.0))
    return rows


def _row(figure: str, client: radixshmem.RadixClient, bound: float) -> Row:
    status = server_status(client.name)
    blocks = int(status["counters"]["blocks"])
    if blocks != client.total_blocks():
        raise RuntimeError(f"status counts {blocks} blocks, the client {client.total_blocks()}")
    memory = {line["what"]: line for line in status["memory"]}
    used = int(memory["index in all"]["used_bytes"])
    reserved = int(memory["index in all"]["reserved_bytes"])
    return Row(
        figure=figure,
        measured=f"{used / 1e6:.1f} MB for {blocks:,} blocks",
        reference=f"{reserved / 1e6:.1f} MB reserved, fixed areas included",
        value=used / blocks,
        bound=bound,
        unit="B",
    )
