# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Rows about several processes: readers side by side, a reader beside a writer, a killed writer."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from coprocess import RadixBench
from index_rows import fill, index_server
from reader_process import helper
from rows import Row, ratio, skipped, time_text
from server_process import server_status
from workload import Workload

import radixshmem

__all__ = ["reader_rows", "repair_rows"]

_SPELL_S = 0.3
_KILLS = 20


def reader_rows(load: Workload, rounds: int, executable: str) -> list[Row]:
    """Two readers against one, and a reader's p99 with and without a writer."""
    scaling = "two reader processes, rate against one, if a random-access loop scaled 2x"
    tail = "reader p99 (pinned paths) beside a writer, against alone"
    with index_server("readers", load.distinct_blocks()) as client:
        fill(client, load)
        with helper("reader", client.name, 1) as first, helper("reader", client.name, 2) as second:
            rows = [skipped(scaling, "needs radix_bench for the random-access loop")]
            if executable:
                with RadixBench(executable) as one, RadixBench(executable) as other:
                    rows = [_scaling(scaling, first, second, one, other, rounds)]
            with helper("writer", client.name, 3) as writer:
                rows.append(_p99_beside_writer(tail, first, writer, rounds))
    return rows


def _scaling(
    figure: str, first: Any, second: Any, one: RadixBench, other: RadixBench, rounds: int
) -> Row:
    """Rates of two together over one alone, for queries and for the loop, in turn.

    On a machine whose two cores do not hinder each other the loop scales 2x; there the value is
    the queries' own scaling.
    """
    alone, pair, loop = [], [], []
    for _ in range(rounds):
        alone.append(first.work(_SPELL_S).rate)
        first.begin(_SPELL_S)
        second.begin(_SPELL_S)
        pair.append(first.finish().rate + second.finish().rate)
        loop_alone = 1 / one.measure("walk_wall")
        one.ask("walk_wall")
        other.ask("walk_wall")
        loop.append((1 / one.answer() + 1 / other.answer()) / loop_alone)
    gain = ratio(pair, alone)
    loop_gain = statistics.median(loop)
    return Row(
        figure=figure,
        measured=f"one: {statistics.median(alone):,.0f}/s, two: {statistics.median(pair):,.0f}/s",
        reference=f"the loop scales {loop_gain:.2f}x",
        value=gain / (loop_gain / 2),
        bound=1.6,
        at_least=True,
        note=f"queries scale {gain:.2f}x",
    )


def _p99_beside_writer(figure: str, reader: Any, writer: Any, rounds: int) -> Row:
    alone, beside, written = [], [], []
    for _ in range(rounds):
        alone.append(float(np.percentile(reader.work(_SPELL_S).latencies_s, 99)))
        writer.begin(1.2 * _SPELL_S)
        beside.append(float(np.percentile(reader.work(_SPELL_S).latencies_s, 99)))
        written.append(writer.finish().rate)
    return Row(
        figure=figure,
        measured=f"beside: {time_text(statistics.median(beside))}",
        reference=f"alone: {time_text(statistics.median(alone))}",
        value=ratio(beside, alone),
        bound=3.0,
        note=f"{statistics.median(written):,.0f} inserts of 64/s",
    )


def repair_rows(load: Workload) -> list[Row]:
    """From the kill -9 of a writer to the next writer's success, when it had died with the lock."""
    figure = f"undo after a writer's death, detection included, worst of {_KILLS} kills"
    repaired: list[float] = []
    random = np.random.default_rng(5)
    with index_server("repair", load.distinct_blocks()) as client:
        fill(client, load)
        recoveries = _recoveries(client.name)
        for kill in range(_KILLS):
            with helper("writer", client.name, kill) as writer:
                writer.begin(_SPELL_S + 60.0)
                writer.process.join(float(random.uniform(0.01, 0.03)))
                writer.process.kill()
                elapsed_s = _next_write(client)
            before, recoveries = recoveries, _recoveries(client.name)
            if recoveries > before:
                repaired.append(elapsed_s)
    if not repaired:
        return [skipped(figure, f"none of {_KILLS} killed writers held the lock")]
    return [
        Row(
            figure=figure,
            measured=f"median {time_text(statistics.median(repaired))}",
            reference=f"{len(repaired)} died with the lock",
            value=max(repaired) * 1e3,
            bound=50.0,
            unit="ms",
        )
    ]


def _next_write(client: radixshmem.RadixClient) -> float:
    """Seconds until this client got a slot, which needs the lock."""
    begin = time.perf_counter()
    slots = client.allocate_slots(1)
    elapsed_s = time.perf_counter() - begin
    client.recycle_slots(slots)
    return elapsed_s


def _recoveries(name: str) -> int:
    return int(server_status(name)["counters"]["recoveries"])
