# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""One engine process of the demo: takes requests in trace order until there are none left."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized, SynchronizedArray
from multiprocessing.synchronize import Barrier
from typing import Any

from engine import Engine
from engine_numbers import EngineNumbers
from traces import TraceSource

import radixshmem

__all__ = ["PROGRESS_COLUMNS", "Assignment", "run_worker"]

PROGRESS_COLUMNS = ("requests", "referenced", "hit", "wrong_bytes")


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker is told: where the cache is and what to serve."""

    number: int
    server_name: str
    source: TraceSource
    slot_bytes: int
    timeout_s: float


def run_worker(
    assignment: Assignment,
    start: Barrier,
    cursor: Synchronized[int],
    progress: SynchronizedArray[int],
    outcome: Connection,
) -> None:
    """Body of the process. `start`: all workers begin together. `cursor`: next request to deal.

    `progress`: this worker writes its row of PROGRESS_COLUMNS. `outcome`: receives EngineNumbers,
    or the traceback as a str.
    """
    try:
        outcome.send(_serve_all(assignment, start, cursor, progress))
    except BaseException:
        outcome.send(traceback.format_exc())
        raise
    finally:
        outcome.close()


def _serve_all(
    assignment: Assignment,
    start: Barrier,
    cursor: Synchronized[int],
    progress: SynchronizedArray[int],
) -> EngineNumbers:
    trace = assignment.source.read()
    geometry = radixshmem.Geometry(
        trace.block_tokens, assignment.slot_bytes, fingerprint="radixshmem demo"
    )
    cells: Any = progress.get_obj()  # each worker has its own cells: no lock needed
    base = assignment.number * len(PROGRESS_COLUMNS)
    with radixshmem.RadixClient(assignment.server_name, geometry) as client:
        client.wait_ready(assignment.timeout_s)
        engine = Engine(client, trace, assignment.slot_bytes)
        start.wait(assignment.timeout_s)
        engine.numbers.began_s = time.monotonic()
        while True:
            with cursor.get_lock():
                request = cursor.value
                cursor.value += 1
            if request >= len(trace):
                engine.numbers.ended_s = time.monotonic()
                return engine.numbers
            engine.serve(request)
            for column, name in enumerate(PROGRESS_COLUMNS):
                cells[base + column] = getattr(engine.numbers, name)
