# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Which KV cache groups of a model go into which pool, and where their bytes lie in a slot.

A slot holds one block of all groups of its class, of all ranks side by side:

    slot = rank 0 {group a, group b, ...} | rank 1 {...} | ...

Ranks may hold different numbers of bytes: stages of a pipeline have different layers. Where all
ranks hold the same bytes (MLA under tensor parallelism) the slot has them once.
Full-attention groups go to FULL, sliding-window groups of one window size to SWA, Mamba groups to
MAMBA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radixshmem import ComponentType

__all__ = ["Group", "GroupMap", "GroupShape", "map_groups"]


@dataclass(frozen=True, slots=True)
class Group:
    """One KV cache group. Where its bytes lie is known to workers only."""

    component: ComponentType
    bytes: int = 0  # of one block on this rank, unpadded
    offset: int = 0  # of those in the slot


@dataclass(frozen=True, slots=True)
class GroupMap:
    """All offloaded groups of a model, in the order of vLLM's group indexes."""

    groups: tuple[Group, ...]
    window_blocks: int  # of the sliding-window groups; 0: there are none
    sizes: tuple[int, ...] = (0,) * len(ComponentType)  # of a slot, by component

    def slot_bytes(self, component: int) -> int:
        return self.sizes[component]

    def parts(self, component: int) -> int:
        """How many groups share a slot of the pool."""
        return sum(g.component == component for g in self.groups)

    def mask(self) -> int:
        return sum(1 << kind for kind in ComponentType if self.parts(kind))

    def placed(self, ranks: Sequence[Sequence[int]], rank: int) -> GroupMap:
        """The same groups as one rank has them; `ranks[r][g]` are bytes of group g on rank r."""
        ends = [0] * len(ComponentType)
        mine: list[Group] = []
        for number, sizes in enumerate(ranks):
            for group, size in zip(self.groups, sizes, strict=True):
                if number == rank:
                    mine.append(Group(group.component, size, ends[group.component]))
                ends[group.component] += size
        return GroupMap(tuple(mine), self.window_blocks, tuple(ends))


@dataclass(frozen=True, slots=True)
class GroupShape:
    """What `map_groups` has to know of a group. `window_tokens` is 0 outside sliding windows."""

    kind: str  # the class name of its spec, for messages
    component: int  # -1: a kind that has no pool
    window_tokens: int = 0  # that the window reaches over


def map_groups(shapes: Sequence[GroupShape], block_tokens: int) -> GroupMap:
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
    windows = {
        -(-s.window_tokens // block_tokens) for s in shapes if s.component == ComponentType.SWA
    }
    if len(windows) > 1:
        raise ValueError(
            f"KV cache groups ({named}) have sliding windows of {sorted(windows)} blocks: {works}"
        )
    groups = tuple(Group(ComponentType(shape.component)) for shape in shapes)
    return GroupMap(groups, max(windows, default=0))
