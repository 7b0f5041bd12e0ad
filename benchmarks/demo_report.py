# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What a demo run is worth: its table, its JSON, and whether it passed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from engine_numbers import EngineNumbers
from report import format_p50_p99, machine, percentile_us, print_table, rate_gb_s
from simulate import Simulation
from traces import Trace

__all__ = ["Outcome", "print_outcome", "to_json", "verdict"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything measured in one run."""

    trace: Trace
    blocks: int
    slot_bytes: int
    workers: list[EngineNumbers]
    cached: int
    """Blocks in the cache at the end."""
    infinite: Simulation
    sequential: Simulation

    def total(self, name: str) -> int:
        """Sum of a counter over the workers."""
        return sum(int(getattr(worker, name)) for worker in self.workers)

    def seconds(self, name: str) -> float:
        return sum(float(getattr(worker, name)) for worker in self.workers)

    def samples(self, name: str) -> npt.NDArray[np.float64]:
        """Latencies of all workers, in seconds."""
        return np.concatenate([np.asarray(getattr(worker, name)) for worker in self.workers])

    @property
    def elapsed_s(self) -> float:
        """From the first request to the last."""
        return max(w.ended_s for w in self.workers) - min(w.began_s for w in self.workers)

    @property
    def hit_ratio(self) -> float:
        referenced = self.total("referenced")
        return self.total("hit") / referenced if referenced else 0.0

    @property
    def evicted(self) -> int:
        """Blocks that were stored and are no longer there."""
        return self.total("inserted") - self.cached

    @property
    def already_there(self) -> int:
        """Blocks that were computed, but another worker had stored them first (or `refused`)."""
        missed = self.total("referenced") - self.total("hit")
        return missed - self.total("inserted") - self.total("not_stored")

    @property
    def refused(self) -> dict[str, int]:
        """Inserts that did not store all, by InsertError name."""
        counts: Counter[str] = Counter()
        for worker in self.workers:
            counts.update(worker.refused)
        return dict(counts)


def verdict(outcome: Outcome, expected: float | None, tolerance: float) -> list[str]:
    """Reasons why the run failed; empty when it passed."""
    problems = []
    if outcome.total("wrong_bytes"):
        first = next(worker.first_wrong for worker in outcome.workers if worker.first_wrong)
        problems.append(f"{outcome.total('wrong_bytes')} wrong bytes were read; first: {first}")
    served, asked = outcome.total("requests"), len(outcome.trace)
    if served != asked:
        problems.append(f"{served} requests were served, the trace has {asked}")
    if expected is not None and abs(outcome.hit_ratio - expected) > tolerance:
        problems.append(
            f"hit ratio {outcome.hit_ratio:.4f} is not within {tolerance} of {expected}"
        )
    return problems


def print_outcome(outcome: Outcome) -> None:
    title = (
        f"{outcome.trace.name}: {len(outcome.workers)} workers, {outcome.blocks} blocks of "
        f"{outcome.slot_bytes} bytes ({outcome.trace.block_tokens} tokens)"
    )
    print_table(title, ("", "value"), _rows(outcome))
    print(machine())


def _rows(outcome: Outcome) -> list[tuple[str, str]]:
    referenced, hit = outcome.total("referenced"), outcome.total("hit")
    rows = [
        ("requests", f"{outcome.total('requests'):,}"),
        ("blocks asked for", f"{referenced:,}"),
        ("blocks hit", f"{hit:,}"),
        ("blocks missed", f"{referenced - hit:,}"),
        ("blocks stored", f"{outcome.total('inserted'):,}"),
        ("blocks evicted", f"{outcome.evicted:,}"),
        ("blocks not stored (no free slot)", f"{outcome.total('not_stored'):,}"),
        ("blocks not stored (already there)", f"{outcome.already_there:,}"),
        ("hit ratio", f"{outcome.hit_ratio:.4f}"),
        ("  sequential LRU of this size, simulated", f"{outcome.sequential.hit_ratio:.4f}"),
        ("  infinite cache", f"{outcome.infinite.hit_ratio:.4f}"),
        ("wrong bytes", f"{outcome.total('wrong_bytes'):,}"),
        ("query + pin, us (p50 / p99)", format_p50_p99(outcome.samples("query_s"))),
        ("allocate, us (p50 / p99)", format_p50_p99(outcome.samples("allocate_s"))),
        ("insert, us (p50 / p99)", format_p50_p99(outcome.samples("insert_s"))),
        ("copy out, GB/s per worker", f"{_rate(outcome, 'out'):.2f}"),
        ("copy in, GB/s per worker", f"{_rate(outcome, 'in'):.2f}"),
        ("requests per second", f"{_requests_per_second(outcome):,.0f}"),
        ("seconds", f"{outcome.elapsed_s:.1f}"),
    ]
    rows += [(f"inserts with {name}", str(n)) for name, n in sorted(outcome.refused.items())]
    return rows


def _requests_per_second(outcome: Outcome) -> float:
    return outcome.total("requests") / outcome.elapsed_s if outcome.elapsed_s > 0 else 0.0


def _rate(outcome: Outcome, direction: str) -> float:
    copied = outcome.total(f"copied_{direction}_bytes")
    return rate_gb_s(copied, outcome.seconds(f"copy_{direction}_s"))


def to_json(outcome: Outcome) -> dict[str, object]:
    """The same numbers for programs."""
    latencies = {
        f"{name}_us": {
            "p50": percentile_us(outcome.samples(f"{name}_s"), 50),
            "p99": percentile_us(outcome.samples(f"{name}_s"), 99),
        }
        for name in ("query", "allocate", "insert")
        if len(outcome.samples(f"{name}_s"))
    }
    referenced, hit = outcome.total("referenced"), outcome.total("hit")
    return {
        "trace": outcome.trace.name,
        "workers": len(outcome.workers),
        "capacity_blocks": outcome.blocks,
        "slot_bytes": outcome.slot_bytes,
        "block_tokens": outcome.trace.block_tokens,
        "requests": outcome.total("requests"),
        "blocks_asked": referenced,
        "blocks_hit": hit,
        "blocks_missed": referenced - hit,
        "blocks_stored": outcome.total("inserted"),
        "blocks_evicted": outcome.evicted,
        "blocks_not_stored": outcome.total("not_stored"),
        "blocks_already_there": outcome.already_there,
        "hit_ratio": outcome.hit_ratio,
        "hit_ratio_sequential_lru": outcome.sequential.hit_ratio,
        "hit_ratio_infinite": outcome.infinite.hit_ratio,
        "wrong_bytes": outcome.total("wrong_bytes"),
        "refused_inserts": outcome.refused,
        **latencies,
        "copy_out_gb_s": _rate(outcome, "out"),
        "copy_in_gb_s": _rate(outcome, "in"),
        "elapsed_s": outcome.elapsed_s,
        "machine": machine(),
    }
