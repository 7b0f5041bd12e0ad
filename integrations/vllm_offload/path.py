# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The path of a request: its block hashes as radixshmem wants them.

vLLM chains the hashes of a request itself and appends to one list as tokens come. A block of the
path is one offload chunk; its hash is the last hash of the chunk, its word the first 8 bytes of
that, little endian.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["RequestPath", "word_of"]

_FIRST_CAPACITY = 64


def word_of(block_hash: bytes) -> int:
    """The uint64 that names a block in the index."""
    return int.from_bytes(block_hash[:8], "little")


class RequestPath:
    """Follows the live list of hashes of one request. Not thread-safe.

    The list may shrink: a streaming session drops the hashes of replaced tokens in place.
    """

    __slots__ = ("_hashes", "_live", "_per_block", "_positions", "_words")

    def __init__(self, live: Sequence[bytes], hashes_per_block: int) -> None:
        self._live = live
        self._per_block = hashes_per_block
        self._hashes: list[bytes] = []
        self._positions: dict[bytes, int] = {}  # of the first blocks, as many as were asked for
        self._words = np.empty(_FIRST_CAPACITY, np.uint64)

    def __len__(self) -> int:
        return len(self._hashes)

    def sync(self) -> None:
        """Take over what was appended or dropped since the last time."""
        known = self._hashes
        size = len(self._live) // self._per_block
        last = min(size, len(known))
        while last > 0 and known[last - 1] != self._hash(last - 1):
            last -= 1
        for dropped in known[last:]:
            self._positions.pop(dropped, None)
        del known[last:]
        if size == last:
            return
        per_block = self._per_block
        added = self._live[(last + 1) * per_block - 1 : size * per_block : per_block]
        known.extend(added)
        if size > len(self._words):
            grown = np.empty(max(size, 2 * len(self._words)), np.uint64)
            grown[:last] = self._words[:last]
            self._words = grown
        # All hashes of a path are of one length, a multiple of 8.
        words = np.frombuffer(b"".join(added), "<u8")
        self._words[last:size] = words[:: len(words) // len(added)]

    def _hash(self, position: int) -> bytes:
        return self._live[(position + 1) * self._per_block - 1]

    def position(self, block_hash: bytes) -> int | None:
        """Where the block lies; None for a hash that is no whole block of this path."""
        found = self._positions.get(block_hash)
        if found is None:
            self.sync()
            begin = len(self._positions)
            self._positions.update(zip(self._hashes[begin:], range(begin, len(self)), strict=True))
            found = self._positions.get(block_hash)
        return found

    def words(self, size: int) -> npt.NDArray[np.uint64]:
        """The first `size` blocks, shape [size]; a view, valid until the next `sync`."""
        return self._words[:size]

    def hashes(self, begin: int, end: int) -> list[bytes]:
        return self._hashes[begin:end]
