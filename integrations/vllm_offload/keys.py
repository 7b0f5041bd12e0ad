# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What vLLM's OffloadKeys name: a block hash, and behind it the index of a KV cache group."""

from __future__ import annotations

from vllm.v1.kv_offload.base import OffloadKey

from radixshmem import ComponentType

from .groups import GroupMap

__all__ = ["Block", "Keys", "group_of", "hash_of"]

_GROUP_BYTES = 4

Block = tuple[int, bytes]  # (component, block hash): what a slot is of


def hash_of(key: OffloadKey) -> bytes:
    return key[:-_GROUP_BYTES]


def group_of(key: OffloadKey) -> bytes:
    return key[-_GROUP_BYTES:]


class Keys:
    """The keys of one model: groups of one class share the slot of a block."""

    def __init__(self, groups: GroupMap) -> None:
        self.component_of = {
            index.to_bytes(_GROUP_BYTES, "big"): int(group.component)
            for index, group in enumerate(groups.groups)
        }
        self.parts = {int(kind): groups.parts(kind) for kind in ComponentType}

    def suffixes(self, component: int) -> list[bytes]:
        """What the keys of each group of the class end with."""
        return [suffix for suffix, its in self.component_of.items() if its == component]

    def block(self, key: OffloadKey) -> Block:
        return self.component_of[group_of(key)], hash_of(key)
