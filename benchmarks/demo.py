# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The main job, live: engine processes share one prefix cache and check every byte they read.

    python benchmarks/demo.py                          # built-in conversations
    python benchmarks/demo.py --trace FILE.jsonl       # a Mooncake or Qwen/Bailian trace

Exit status: 0 when all went well, 1 when a byte was wrong, a worker or the server failed, or the
hit ratio is not the expected one; 2 for wrong usage; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import SynchronizedArray

from demo_report import Outcome, print_outcome, to_json, verdict
from engine_numbers import EngineNumbers
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from server_process import interrupt_held, own_name, radix_server
from simulate import simulate
from traces import Trace, TraceSource
from worker import PROGRESS_COLUMNS, Assignment, run_worker

import radixshmem

_SLOT_ALIGN = 4096
_REFRESH_S = 0.2


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Serve a trace from one shared prefix cache and verify every byte."
    )
    parser.add_argument("--trace", default="", help="JSON lines file; default: made-up chats")
    parser.add_argument("--workers", type=int, default=4, help="engine processes (default 4)")
    parser.add_argument("--blocks", type=int, default=10_000, help="capacity (default 10000)")
    parser.add_argument(
        "--slot-bytes", type=int, default=4096, help="bytes of a block, a multiple of 8 (4096)"
    )
    parser.add_argument(
        "--requests", type=int, default=0, help="serve only so many (default: the whole trace)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the built-in conversations")
    parser.add_argument("--json", default="", metavar="FILE", help="write the numbers here too")
    parser.add_argument("--expect-hit-ratio", type=float, help="fail when the ratio is not this")
    parser.add_argument("--tolerance", type=float, default=0.02, help="of --expect-hit-ratio")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="give up after")
    arguments = parser.parse_args(argv)
    for name in ("workers", "blocks", "slot_bytes"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if arguments.slot_bytes % 8:
        parser.error(f"--slot-bytes must be a multiple of 8, got {arguments.slot_bytes}")
    if arguments.requests < 0:
        parser.error(f"--requests must not be negative, got {arguments.requests}")
    return arguments


def run_demo(arguments: argparse.Namespace, source: TraceSource, trace: Trace) -> Outcome:
    """Serve `trace`, read from `source`, with worker processes on a server of our own.

    Raises RuntimeError when the server or a worker fails, TimeoutError when time is up.
    """
    name = own_name("demo")
    stride = -(-arguments.slot_bytes // _SLOT_ALIGN) * _SLOT_ALIGN
    flags = ["--data-bytes", str(arguments.blocks * stride), "--slot-align", str(_SLOT_ALIGN)]
    # The simulation beside us evicts one by one at capacity; so no spare room is kept here.
    flags += ["--background-evict-ratio", "0"]
    deadline = time.monotonic() + arguments.timeout
    with radix_server(name, *flags), radixshmem.RadixClient(name) as observer:
        numbers = _run_workers(arguments, source, len(trace), name, deadline)
        observer.wait_ready(max(1.0, deadline - time.monotonic()))
        cached = observer.total_blocks()
    return Outcome(
        trace=trace,
        blocks=arguments.blocks,
        slot_bytes=arguments.slot_bytes,
        workers=numbers,
        cached=cached,
        infinite=simulate(trace, None),
        sequential=simulate(trace, arguments.blocks),
    )


def _run_workers(
    arguments: argparse.Namespace, source: TraceSource, requests: int, name: str, deadline: float
) -> list[EngineNumbers]:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(arguments.workers)
    cursor = context.Value("q", 0)
    progress = context.Array("q", arguments.workers * len(PROGRESS_COLUMNS))
    processes: list[SpawnProcess] = []
    pipes: list[Connection] = []
    try:
        for number in range(arguments.workers):
            receiver, sender = context.Pipe(duplex=False)
            assignment = Assignment(number, name, source, arguments.slot_bytes, arguments.timeout)
            process = context.Process(
                target=run_worker, args=(assignment, start, cursor, progress, sender), daemon=True
            )
            with interrupt_held():
                process.start()
                processes.append(process)
            sender.close()  # so that a dead worker's pipe reads as ended
            pipes.append(receiver)
        return _collect(processes, pipes, progress, requests, deadline)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _collect(
    processes: list[SpawnProcess],
    pipes: list[Connection],
    progress: SynchronizedArray[int],
    requests: int,
    deadline: float,
) -> list[EngineNumbers]:
    """Show progress until every worker has reported; fail with the first that cannot."""
    reported: dict[int, EngineNumbers] = {}
    waiting = {pipe: number for number, pipe in enumerate(pipes)}
    columns = (
        TextColumn("serving"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("hit ratio {task.fields[ratio]:.4f}  wrong bytes {task.fields[wrong]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("", total=requests, ratio=0.0, wrong=0)
        while waiting:
            for pipe in multiprocessing.connection.wait(list(waiting), _REFRESH_S):
                assert isinstance(pipe, Connection)
                number = waiting.pop(pipe)
                reported[number] = _receive(pipe, processes[number], number)
            sums = dict(zip(PROGRESS_COLUMNS, _column_sums(progress), strict=True))
            ratio = sums["hit"] / sums["referenced"] if sums["referenced"] else 0.0
            bar.update(task, completed=sums["requests"], ratio=ratio, wrong=sums["wrong_bytes"])
            if waiting and time.monotonic() > deadline:
                missing = sorted(waiting.values())
                raise TimeoutError(
                    f"workers {missing} still had work when time was up; raise --timeout, or "
                    "serve fewer requests with --requests"
                )
    return [reported[number] for number in range(len(pipes))]


def _column_sums(progress: SynchronizedArray[int]) -> list[int]:
    cells = progress[:]
    return [sum(cells[column :: len(PROGRESS_COLUMNS)]) for column in range(len(PROGRESS_COLUMNS))]


def _receive(pipe: Connection, process: SpawnProcess, number: int) -> EngineNumbers:
    try:
        message = pipe.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"worker {number} (pid {process.pid}) died with exit code {process.exitcode}"
        ) from None
    if isinstance(message, str):
        raise RuntimeError(f"worker {number} (pid {process.pid}) failed:\n{message}")
    assert isinstance(message, EngineNumbers)
    return message


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    source = TraceSource(arguments.trace, arguments.requests, arguments.seed)
    try:
        trace = source.read()
    except (OSError, ValueError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    try:
        outcome = run_demo(arguments, source, trace)
    except (RuntimeError, TimeoutError, ValueError) as error:
        print(f"demo: FAILED: {error}", file=sys.stderr)
        return 1
    print_outcome(outcome)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(to_json(outcome), file, indent=2)
            file.write("\n")
    problems = verdict(outcome, arguments.expect_hit_ratio, arguments.tolerance)
    for problem in problems:
        print(f"demo: FAILED: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("demo: interrupted; its server and workers are gone", file=sys.stderr)
        sys.exit(130)
