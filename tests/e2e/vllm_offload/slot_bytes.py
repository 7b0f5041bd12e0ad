# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Workers without an engine: each block has bytes of its own, so that any wrong slot is noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from radixshmem import ComponentType, Geometry, RadixClient, RadixError, SlotStore
from radixshmem.integrations.vllm_offload.groups import GroupMap, GroupShape, map_groups
from radixshmem.integrations.vllm_offload.transfer import SlotSpec

FULL, SWA, MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA

BLOCK_TOKENS = 4
GROUP_BYTES = 512  # of one block on one rank; a server has 4 KiB at least
WINDOW = 2  # blocks

MODELS: dict[str, list[ComponentType]] = {
    "llama": [FULL],
    "gemma": [SWA, SWA, FULL],
    "mamba": [FULL, MAMBA],
}


def groups_of(model: str, ranks: int = 1) -> GroupMap:
    window = WINDOW * BLOCK_TOKENS
    shapes = [GroupShape(c.name, c, window if c == SWA else 0) for c in MODELS[model]]
    return map_groups(shapes, BLOCK_TOKENS).placed([[GROUP_BYTES] * len(shapes)] * ranks, 0)


def geometry_of(groups: GroupMap) -> Geometry:
    return Geometry(
        BLOCK_TOKENS,
        groups.slot_bytes(FULL),
        swa_slot_bytes=groups.slot_bytes(SWA),
        swa_window_blocks=groups.window_blocks,
        mamba_slot_bytes=groups.slot_bytes(MAMBA),
        slot_align=1,
    )


class Workers:
    """All ranks of an engine. What they write is determined by key and rank alone."""

    def __init__(self, client: RadixClient, groups: GroupMap) -> None:
        self._client = client
        self._groups = groups

    def store(self, keys: Sequence[bytes], spec: SlotSpec) -> bool:
        """False: the slots are of a server that is gone."""
        assert len(keys) == len(spec.slots)
        store = self._life(spec)
        if store is None:
            return False
        for key, slot in zip(keys, spec.slots.tolist(), strict=True):
            kind, offset = self._place(key)
            view = store.slot_view(slot, kind)
            for rank, begin in self._ranks(kind, offset):
                view[begin : begin + GROUP_BYTES] = content(key, rank)
        return True

    def load(self, keys: Sequence[bytes], spec: SlotSpec) -> bool:
        """Whether the slots could be read. AssertionError when one holds other bytes."""
        assert len(keys) == len(spec.slots)
        if self._life(spec) is None:
            return False
        for key, slot in zip(keys, spec.slots.tolist(), strict=True):
            self.check(key, slot)
        return True

    def check(self, key: bytes, slot: int) -> None:
        kind, offset = self._place(key)
        store = self._client.store
        assert store is not None
        view = store.slot_view(slot, kind)
        for rank, begin in self._ranks(kind, offset):
            found = bytes(view[begin : begin + GROUP_BYTES])
            assert found == content(key, rank), (
                f"{ComponentType(kind).name} slot {slot} holds other bytes than those of "
                f"block {key[:8].hex()}, group {int.from_bytes(key[-4:], 'big')}, rank {rank}"
            )

    def _place(self, key: bytes) -> tuple[int, int]:
        group = self._groups.groups[int.from_bytes(key[-4:], "big")]
        return int(group.component), group.offset

    def _ranks(self, kind: int, offset: int) -> Iterator[tuple[int, int]]:
        """Each rank, and where its bytes begin."""
        of_rank = GROUP_BYTES * self._groups.parts(kind)
        return enumerate(range(offset, self._groups.slot_bytes(kind), of_rank))

    def _life(self, spec: SlotSpec) -> SlotStore | None:
        try:
            self._client.mempool_free()
        except RadixError:
            return None
        store = self._client.store
        return store if store is not None and store.nonce == spec.life else None


def content(key: bytes, rank: int) -> bytes:
    return hashlib.blake2b(key + bytes([rank]), digest_size=32).digest() * (GROUP_BYTES // 32)
