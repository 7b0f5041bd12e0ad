# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What is counted, and how vLLM gets it: for its log and for /metrics.

vLLM's offloading connector reports bytes, seconds and sizes of transfers by itself, and vLLM the
hits (`vllm:external_prefix_cache_hits`). Here is what only the manager knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
)

__all__ = ["GAUGES", "PREFIX", "Figures", "Meter", "definitions"]

PREFIX = "vllm:kv_offload_radixshmem_"
_GAUGES_EVERY_S = 1.0


def _counter(what: str) -> int:
    return field(default=0, metadata={"what": what})


@dataclass(slots=True)
class Figures:
    """What the manager counted since it was made: each is a counter of its own."""

    stored_blocks: int = _counter("Blocks that this engine put into the shared cache.")
    failed_stores: int = _counter("Blocks that a worker could not copy into the shared cache.")
    failed_loads: int = _counter("Requests whose load failed; they were computed instead.")
    short_allocations: int = _counter("Stores that got fewer slots than they asked for.")
    lost_blocks: int = _counter("Blocks that were copied, and then not taken into the index.")
    pulled_blocks: int = _counter("Blocks that were fetched from other nodes for this engine.")
    failed_pulls: int = _counter("Fetches that brought less than another node had, or did not end.")
    lost_servers: int = _counter("Times that radix-server was found closed or replaced.")


GAUGES = {
    "cache_usage_perc": "Share of the slots for full attention that are in use (1 means all).",
    "pinned_requests": "Requests of this engine that keep what they found from eviction.",
}


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """The metrics of this module, by name, as vLLM's API server wants them."""
    counters: dict[str, OffloadingMetricMetadata] = {
        PREFIX + figure.name: OffloadingCounterMetadata(documentation=figure.metadata["what"])
        for figure in fields(Figures)
    }
    return counters | {
        PREFIX + name: OffloadingGaugeMetadata(documentation=what) for name, what in GAUGES.items()
    }


class Meter:
    """Turns figures into the increments that vLLM wants."""

    def __init__(self, figures: Figures, gauges: Callable[[], Mapping[str, float]]) -> None:
        self._figures = figures
        self._gauges = gauges
        self._told = Figures()
        self._shown: Mapping[str, float] = {}
        self._next_s = 0.0

    def take(self) -> OffloadingConnectorStats | None:
        """What changed since the last time; None for nothing. Gauges are read once a second."""
        stats: OffloadingConnectorStats | None = None
        for figure in fields(Figures):
            value = getattr(self._figures, figure.name)
            more = value - getattr(self._told, figure.name)
            if more:
                stats = stats or OffloadingConnectorStats()
                stats.increase_counter(PREFIX + figure.name, more)
                setattr(self._told, figure.name, value)
        now_s = time.monotonic()
        if now_s < self._next_s:
            return stats
        self._next_s = now_s + _GAUGES_EVERY_S
        seen = self._gauges()
        for name, level in seen.items():
            if level != self._shown.get(name):
                stats = stats or OffloadingConnectorStats()
                stats.set_gauge(PREFIX + name, level)
        self._shown = seen
        return stats
