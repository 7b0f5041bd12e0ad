# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What a perfect sequential prefix cache would hit on a trace: the yardstick of the demo.

Block level, least recently used, leaves first: a request matches the longest cached prefix of its
path, all its blocks become as recent as the request, and what exceeds the capacity is evicted from
the leaf that was used longest ago (of equally old leaves, the deepest).

    python benchmarks/simulate.py TRACE --blocks 2000 5000 10000
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from traces import Trace, load_trace

__all__ = ["Simulation", "simulate"]

_ROOT = -1


@dataclass(frozen=True, slots=True)
class Simulation:
    """Outcome of one simulated run, in blocks."""

    references: int
    hits: int
    evicted: int

    @property
    def hit_ratio(self) -> float:
        return self.hits / self.references if self.references else 0.0


class _Cache:
    """A prefix tree of blocks with a heap of its leaves, oldest first."""

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._block_of: dict[tuple[int, int], int] = {}  # (parent, id) -> block: equal paths only
        self._parent: list[int] = []
        self._depth: list[int] = []
        self._children: list[int] = []
        self._used: list[float] = []
        self._cached: list[bool] = []
        self._size = 0
        self._leaves: list[tuple[float, int, int]] = []  # stale entries are dropped when popped
        self.evicted = 0

    def request(self, ids: Sequence[int], time: float) -> int:
        """Match, touch and insert one path. Returns: how many leading blocks were cached."""
        hit = 0
        parent = _ROOT
        for depth, block_id in enumerate(ids):
            block = self._block(parent, block_id, depth)
            if self._cached[block]:
                hit += 1
            else:
                self._add(block)
            self._used[block] = time
            parent = block
        if parent != _ROOT and not self._children[parent]:
            self._push(parent)
        while self._capacity is not None and self._size > self._capacity:
            self._evict()
        return hit

    def _block(self, parent: int, block_id: int, depth: int) -> int:
        block = self._block_of.setdefault((parent, block_id), len(self._parent))
        if block == len(self._parent):
            self._parent.append(parent)
            self._depth.append(depth)
            self._children.append(0)
            self._used.append(0.0)
            self._cached.append(False)
        return block

    def _add(self, block: int) -> None:
        self._cached[block] = True
        self._size += 1
        if self._parent[block] != _ROOT:
            self._children[self._parent[block]] += 1

    def _push(self, block: int) -> None:
        heapq.heappush(self._leaves, (self._used[block], -self._depth[block], block))

    def _evict(self) -> None:
        while True:
            used, _, block = heapq.heappop(self._leaves)
            if self._cached[block] and not self._children[block] and self._used[block] == used:
                break
        self._cached[block] = False
        self._size -= 1
        self.evicted += 1
        parent = self._parent[block]
        if parent != _ROOT:
            self._children[parent] -= 1
            if not self._children[parent]:
                self._push(parent)


def simulate(trace: Trace, capacity: int | None) -> Simulation:
    """Run the trace through a cache of `capacity` blocks; None is a cache without a limit."""
    if capacity is not None and capacity < 1:
        raise ValueError(f"capacity must be at least 1 block, got {capacity}")
    cache = _Cache(capacity)
    hits = 0
    for request in range(len(trace)):
        hits += cache.request(trace.path(request).tolist(), float(trace.times_ms[request]))
    return Simulation(trace.references, hits, cache.evicted)


def main() -> None:
    parser = argparse.ArgumentParser(description="Hit ratio of a sequential LRU prefix cache.")
    parser.add_argument("trace", help="JSON lines, Mooncake or Qwen/Bailian schema")
    parser.add_argument("--blocks", type=int, nargs="+", default=[2000, 5000, 10000, 20000, 40000])
    arguments = parser.parse_args()
    trace = load_trace(arguments.trace)
    print(f"{trace.name}: {len(trace)} requests, {trace.references} block references")
    for capacity in arguments.blocks:
        print(f"{capacity:>10} blocks  hit ratio {simulate(trace, capacity).hit_ratio:.4f}")
    print(f"{'no limit':>10}         hit ratio {simulate(trace, None).hit_ratio:.4f}")


if __name__ == "__main__":
    main()
