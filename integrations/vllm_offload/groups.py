# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Which KV cache groups of a model go into which pool, and where their bytes lie in a slot.

A slot holds one block of all groups of its class, of all ranks side by side:

    slot = rank 0 {group a, group b, ...} | rank 1 {...} | ...

Full-attention groups go to FULL, sliding-window groups of one window size to SWA, Mamba groups to
MAMBA. With a replicated KV cache (MLA under tensor parallelism) all ranks have the same bytes, and
the slot holds them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radixshmem import ComponentType

__all__ = ["Group", "GroupMap", "GroupShape", "map_groups"]


@dataclass(frozen=True, slots=True)
class Group:
    """One KV cache group. `bytes` are those of one block on one rank, unpadded."""

    component: ComponentType
    bytes: int
    offset: int  # within the part of one rank


@dataclass(frozen=True, slots=True)
class GroupMap:
    """All offloaded groups of a model, in the order of vLLM's group indexes."""

    groups: tuple[Group, ...]
    window_blocks: int  # of the sliding-window groups; 0: there are none
    copies: int  # parts of a slot: the world size, or 1 when all ranks have the same bytes

    def rank_bytes(self, component: int) -> int:
        """Bytes of one rank in a slot of the pool."""
        return sum(g.bytes for g in self.groups if g.component == component)

    def slot_bytes(self, component: int) -> int:
        return self.copies * self.rank_bytes(component)

    def parts(self, component: int) -> int:
        """How many groups share a slot of the pool."""
        return sum(g.component == component for g in self.groups)

    def mask(self) -> int:
        return sum(1 << kind for kind in ComponentType if self.parts(kind))


@dataclass(frozen=True, slots=True)
class GroupShape:
    """What `map_groups` has to know of a group. `window_blocks` is 0 outside sliding windows."""

    kind: str  # the class name of its spec, for messages
    component: int  # -1: a kind that has no pool
    bytes: int
    window_blocks: int = 0  # blocks that the window reaches over


def map_groups(shapes: Sequence[GroupShape], copies: int) -> GroupMap:
    """ValueError, naming the groups and what would work, for a mix that has no pools."""
    named = ", ".join(f"{i}: {shape.kind}" for i, shape in enumerate(shapes))
    works = (
        "radixshmem takes full-attention groups (at least one), sliding-window groups of one "
        "window size, and Mamba groups"
    )
    strange = [i for i, shape in enumerate(shapes) if shape.component < 0]
    if strange:
        raise ValueError(f"KV cache groups {strange} of ({named}) cannot be offloaded: {works}")
    if not any(shape.component == ComponentType.FULL for shape in shapes):
        raise ValueError(f"KV cache groups ({named}) have no full-attention group: {works}")
    windows = {s.window_blocks for s in shapes if s.component == ComponentType.SWA}
    if len(windows) > 1:
        raise ValueError(
            f"KV cache groups ({named}) have sliding windows of {sorted(windows)} blocks: {works}"
        )
    offsets = dict.fromkeys(ComponentType, 0)
    groups = []
    for shape in shapes:
        component = ComponentType(shape.component)
        groups.append(Group(component, shape.bytes, offsets[component]))
        offsets[component] += shape.bytes
    return GroupMap(tuple(groups), max(windows, default=0), copies)
