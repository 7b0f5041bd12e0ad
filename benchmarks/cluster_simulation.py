# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What a cluster of 16, 256 and 4,096 nodes costs: `radix_simulation` on a trace, as one table.

    cmake -S . -B build/bench -DRADIX_BENCH=ON -DRADIX_PYTHON=OFF && cmake --build build/bench
    python benchmarks/cluster_simulation.py --trace mooncake_conversation_trace.jsonl

The simulator (csrc/bench/simulation) runs the real trees, directories, publisher and lookup of all
nodes in one process. Of a trace it takes lengths and shared prefixes; without one, made-up
conversations. Blocks have 16 tokens, a larger block of the trace becomes several. What the figures
mean: docs/scaling.md. Takes about two minutes and 2 GiB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from report import machine, print_table
from rich.console import Console
from traces import Trace, TraceSource
from workload import BLOCK_TOKENS, Workload, save

SIMULATION = Path(__file__).parents[1] / "build" / "bench" / "csrc" / "bench" / "radix_simulation"
NODES = (16, 256, 4096)

_LEAST_SLOTS = 8192
_SLOTS_IN_ALL = 1 << 22
_MIX = np.uint64(0x9E3779B97F4A7C15)

Figures = Mapping[str, float]


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Simulate clusters on a trace.")
    parser.add_argument(
        "--trace", default="", metavar="FILE", help="Mooncake or Qwen/Bailian; else made-up chats"
    )
    parser.add_argument("--requests", type=int, default=0, help="of the trace; 0 = all")
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES), metavar="N")
    parser.add_argument(
        "--slots",
        type=int,
        default=0,
        help="of each node (default: 4 Mi in all nodes together, 8192 each at least)",
    )
    parser.add_argument("--lookups", type=int, default=2000, help="that are measured (2000)")
    parser.add_argument(
        "--simulation", default=str(SIMULATION), metavar="FILE", help="the C++ program"
    )
    parser.add_argument("--json", default="", metavar="FILE", help="write all figures here")
    arguments = parser.parse_args(argv)
    if not os.access(arguments.simulation, os.X_OK):
        parser.error(
            f"--simulation {arguments.simulation} is not an executable; build it with "
            "cmake -DRADIX_BENCH=ON"
        )
    return arguments


def workload_of(trace: Trace) -> Workload:
    """The requests of a trace as paths of 16-token blocks."""
    parts = max(1, trace.block_tokens // BLOCK_TOKENS)
    number: dict[tuple[int, int], int] = {}  # (number of the parent, id) -> number
    numbers = np.empty(trace.references, np.uint64)
    at = 0
    for request in range(len(trace)):
        parent = -1
        for block in trace.path(request).tolist():
            parent = number.setdefault((parent, block), len(number))
            numbers[at] = parent
            at += 1
    place = np.arange(1, parts + 1, dtype=np.uint64)
    hashes = _mixed(numbers[:, None] * np.uint64(parts) + place[None, :]).reshape(-1)
    offsets = trace.offsets.astype(np.uint64) * np.uint64(parts)
    inserts = np.stack([np.arange(len(trace), dtype=np.uint64), np.diff(offsets)], axis=1)
    return Workload(short=len(trace), offsets=offsets, hashes=hashes, inserts=inserts)


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words = words * _MIX
    words ^= words >> np.uint64(29)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    return words ^ (words >> np.uint64(32))


def slots_of(nodes: int) -> int:
    return max(_LEAST_SLOTS, _SLOTS_IN_ALL // nodes)


class Simulator:
    """Runs of the C++ program on one workload file."""

    def __init__(self, executable: str, workload_file: str, lookups: int) -> None:
        self._command = [executable, workload_file]
        self._lookups = lookups

    def run(self, nodes: int, slots: int, directory_bytes: float = 0) -> dict[str, float]:
        """Raises RuntimeError with the program's own words when it fails."""
        numbers = (nodes, slots, self._lookups, int(directory_bytes))
        command = [*self._command, *map(str, numbers)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(
                f"{' '.join(command)} ended with status {done.returncode}; it said:\n{done.stderr}"
            )
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    def runs(self, nodes: int, slots: int) -> list[dict[str, float]]:
        """With the directory that a node has by default; if not all nodes keep shards, also with
        one that is larger by as much as the keepers are fewer."""
        plain = self.run(nodes, slots)
        if plain["keepers"] == nodes:
            return [plain]
        return [plain, self.run(nodes, slots, plain["directory_bytes"] * nodes / plain["keepers"])]


def connections(nodes: int, processes: int) -> int:
    """Reliable connections of a node: each process to every other node, and the reverse."""
    return 2 * processes * (nodes - 1)


def _share(figures: Figures, part: str, whole: str) -> str:
    return f"{100 * figures[part] / figures[whole]:.1f} %" if figures[whole] else "-"


def _plain(name: str, digits: int = 0) -> Callable[[Figures], str]:
    return lambda figures: f"{figures[name]:,.{digits}f}"


def _rounds(number: int) -> Callable[[Figures], str]:
    return lambda figures: _share(figures, f"rounds_{number}", "lookups")


def _mean_p99(name: str, unit: int = 1) -> Callable[[Figures], str]:
    return lambda f: f"{f[name + '_mean'] / unit:.1f}, {f[name + '_p99'] / unit:.0f}"


def _received(figures: Figures) -> str:
    sent = figures["store_per_s_bytes"]
    return f"{sent * figures['nodes'] / figures['keepers'] / 1024:.1f}"


ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("slots of a node, here", _plain("slots")),
    ("nodes that keep shards", _plain("keepers")),
    ("DIRECTORY: bytes a slot", lambda f: f"{f['directory_bytes'] / f['slots']:.2f}"),
    ("  keys held, a block", lambda f: f"{f['keys_held'] / f['blocks']:.4f}"),
    ("  keys held, of what has room", lambda f: _share(f, "keys_held", "directory_entries_max")),
    (
        "  load, mean, fullest",
        lambda f: f"{f['directory_load']:.2f}, {f['directory_load_max']:.2f}",
    ),
    ("  keys dropped, of those sent", lambda f: _share(f, "keys_dropped", "keys_published")),
    ("LOOKUPS measured", _plain("lookups")),
    ("  1 round or none", lambda f: _share(_no_more_rounds(f), "few", "lookups")),
    ("  2 rounds", _rounds(2)),
    ("  3 rounds", _rounds(3)),
    ("  4 rounds", _rounds(4)),
    ("  5 rounds", _rounds(5)),
    (
        "  more than 2, and more than 64 keys",
        lambda f: _share(f, "rounds_above_2_many_keys", "lookups"),
    ),
    (
        "  blocks found, of those a node has",
        lambda f: _share(f, "remote_blocks_found", "remote_blocks_exist"),
    ),
    ("  READs, mean, p99", _mean_p99("reads")),
    ("  KiB, mean, p99", _mean_p99("bytes", 1024)),
    ("  peers read, mean, p99", _mean_p99("peers")),
    ("HOT SPOTS: shards, most / mean", _plain("shards_max_over_mean", 2)),
    ("  READs of lines, hottest keeper / mean", _plain("keeper_reads_max_over_mean", 2)),
    ("  of the hottest keeper, a lookup", _plain("hottest_keeper_reads_per_lookup", 2)),
    ("  of segments, a lookup", _plain("holder_reads_per_lookup", 2)),
    ("  of the hottest holder, a lookup", _plain("hottest_holder_reads_per_lookup", 2)),
    ("STORING 50,000 tokens/s: keys sent/s", _plain("store_per_s_keys")),
    ("  batches sent/s", _plain("store_per_s_batches")),
    ("  KiB sent/s", lambda f: f"{f['store_per_s_bytes'] / 1024:.1f}"),
    ("  KiB received/s by a keeper", _received),
    ("REPUBLISHING 10,000 keys/s: batches/s", _plain("heal_per_s_batches")),
    ("  KiB sent/s", lambda f: f"{f['heal_per_s_bytes'] / 1024:.1f}"),
    ("A KEEPER LEAVES: shards moved", lambda f: f"{100 * f['leave_shards_moved']:.2f} %"),
    ("  keys sent anew by a node", lambda f: _share(f, "leave_keys", "heal_keys")),
    ("CONNECTIONS, 1 process a node", lambda f: f"{connections(int(f['nodes']), 1):,}"),
    ("  8 processes a node", lambda f: f"{connections(int(f['nodes']), 8):,}"),
)


def _no_more_rounds(figures: Figures) -> Figures:
    return {**figures, "few": figures["rounds_0"] + figures["rounds_1"]}


def table(runs: list[dict[str, float]]) -> list[list[str]]:
    return [[name, *(cell(figures) for figures in runs)] for name, cell in ROWS]


def heads(runs: list[dict[str, float]]) -> list[str]:
    """Column heads; of two runs of one size the second has the larger directory."""
    out: list[str] = []
    for figures in runs:
        name = f"{figures['nodes']:,.0f} nodes"
        out.append(f"{name}, larger directory" if name in out else name)
    return out


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    try:
        trace = TraceSource(arguments.trace, arguments.requests).read()
    except (OSError, ValueError) as error:
        print(f"cluster_simulation: {error}", file=sys.stderr)
        return 2
    runs: list[dict[str, float]] = []
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="radix_simulation_") as folder:
        file = os.path.join(folder, "workload.bin")
        save(workload_of(trace), file)
        simulator = Simulator(arguments.simulation, file, arguments.lookups)
        for nodes in arguments.nodes:
            with console.status(f"{nodes} nodes"):
                runs += simulator.runs(nodes, arguments.slots or slots_of(nodes))
    print_table(f"clusters on {trace.name}", ["figure", *heads(runs)], table(runs))
    print(machine())
    if arguments.json:
        report = {"trace": trace.name, "machine": machine(), "runs": runs}
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
