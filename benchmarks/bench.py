# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Speed and memory of the index, each figure beside the machine's limit or a peer, in one run.

    cmake -S . -B build/bench -DRADIX_BENCH=ON -DRADIX_PYTHON=OFF && cmake --build build/bench
    python benchmarks/bench.py --json bench.json --png bench.png

A figure whose tool or peer is missing is printed as skipped, with the reason. Absolute times say
little on another machine; the ratios are what to compare. This is no test: the exit status is 0
also when a bound is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import workload
from adapter_rows import sglang_rows, vllm_rows
from byte_rows import copy_rows, hash_rows
from cluster_rows import cluster_rows
from coprocess import RadixBench
from core_rows import core_rows
from index_rows import evict_rows, peer_rows
from memory_rows import memory_rows
from plot import draw
from process_rows import reader_rows, repair_rows
from report import machine, print_table
from rich.console import Console
from rows import Row, table_cells

BUILD = Path(__file__).parents[1] / "build"
RADIX_BENCH = BUILD / "bench" / "csrc" / "bench" / "radix_bench"
VLLM_PYTHON = BUILD / "vllm-0.32.0" / "bin" / "python"
SGLANG_PYTHON = BUILD / "sglang-0.5.23" / "bin" / "python"
COLUMNS = ("figure", "measured", "beside", "value", "must be", "reached")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure radixshmem against its bounds.")
    parser.add_argument(
        "--radix-bench",
        default=str(RADIX_BENCH) if RADIX_BENCH.exists() else "",
        metavar="FILE",
        help="the C++ benchmark (default: build/bench/csrc/bench/radix_bench, if it is there)",
    )
    parser.add_argument(
        "--vllm-python",
        default=str(VLLM_PYTHON) if VLLM_PYTHON.exists() else "",
        metavar="FILE",
        help="Python with vLLM and radixshmem (default: build/vllm-0.32.0/bin/python, if there)",
    )
    parser.add_argument(
        "--sglang-python",
        default=str(SGLANG_PYTHON) if SGLANG_PYTHON.exists() else "",
        metavar="FILE",
        help="the same with SGLang (default: build/sglang-0.5.23/bin/python, if there)",
    )
    parser.add_argument("--rounds", type=int, default=15, help="samples of each figure (15)")
    parser.add_argument("--only", default="", help="groups, comma separated: " + ", ".join(GROUPS))
    parser.add_argument("--json", default="", metavar="FILE", help="write the rows here too")
    parser.add_argument("--png", default="", metavar="FILE", help="draw the picture here")
    arguments = parser.parse_args(argv)
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {arguments.rounds}")
    unknown = set(filter(None, arguments.only.split(","))) - set(GROUPS)
    if unknown:
        parser.error(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    if arguments.radix_bench and not os.access(arguments.radix_bench, os.X_OK):
        parser.error(
            f"--radix-bench {arguments.radix_bench} is not an executable; build it with "
            "cmake -DRADIX_BENCH=ON"
        )
    for engine in ("vllm", "sglang"):
        python: str = getattr(arguments, f"{engine}_python")
        if python and not os.access(python, os.X_OK):
            parser.error(
                f"--{engine}-python {python} is not an executable; make the environment with "
                f"scripts/{engine}_env.sh"
            )
    return arguments


class Context:
    """What the groups share."""

    def __init__(self, arguments: argparse.Namespace, folder: str) -> None:
        self.rounds: int = arguments.rounds
        self.executable: str = arguments.radix_bench
        self.vllm_python: str = arguments.vllm_python
        self.sglang_python: str = arguments.sglang_python
        self.load = workload.make()
        self.workload_file = os.path.join(folder, "workload.bin")
        workload.save(self.load, self.workload_file)

    def radix_bench(self) -> contextlib.AbstractContextManager[RadixBench | None]:
        if not self.executable:
            return contextlib.nullcontext()
        return RadixBench(self.executable)


def _evict(context: Context) -> list[Row]:
    with context.radix_bench() as bench:
        return evict_rows(context.load, context.rounds, bench)


def _hash(context: Context) -> list[Row]:
    with context.radix_bench() as bench:
        return hash_rows(context.rounds, bench)


GROUPS: dict[str, Callable[[Context], list[Row]]] = {
    "core": lambda c: core_rows(c.executable, c.workload_file, c.rounds),
    "peer": lambda c: peer_rows(c.load, c.rounds),
    "evict": _evict,
    "memory": lambda c: memory_rows(c.load),
    "readers": lambda c: reader_rows(c.load, c.rounds, c.executable),
    "hash": _hash,
    "copy": lambda c: copy_rows(c.rounds),
    "repair": lambda c: repair_rows(c.load),
    "cluster": lambda c: cluster_rows(c.executable, c.rounds),
    "vllm": lambda c: vllm_rows(c.vllm_python, c.rounds),
    "sglang": lambda c: sglang_rows(c.sglang_python, c.rounds),
}


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    wanted = list(filter(None, arguments.only.split(","))) or list(GROUPS)
    console = Console(stderr=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="radix_bench_") as folder:
        context = Context(arguments, folder)
        for number, group in enumerate(wanted, 1):
            with console.status(f"{number}/{len(wanted)} {group}"):
                rows += GROUPS[group](context)
    print_table("radixshmem benchmark", COLUMNS, [table_cells(row) for row in rows])
    print(machine())
    if arguments.json:
        report = {"machine": machine(), "rows": [_for_json(row) for row in rows]}
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if arguments.png:
        try:
            draw(rows, Path(arguments.png), machine())
        except ImportError as error:
            print(f"bench: no picture: {error}", file=sys.stderr)
    return 0


def _for_json(row: Row) -> dict[str, object]:
    return {**asdict(row), "reached": row.reached}


if __name__ == "__main__":
    sys.exit(main())
