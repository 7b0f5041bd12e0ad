# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Four nodes, one cache: engines of each node find and pull what the others have stored.

    python benchmarks/demo_cluster.py

etcd and four radix-servers, all with the same command line but for the address, each on a machine
of its own: a network and a mount namespace with a private /dev/shm. Eight workers replay
conversations whose turns go round the nodes, and check every byte. In the middle one is killed.
Without the privileges for namespaces, the nodes share loopback and read each other's memory.

Exit status: 0 when no byte was wrong, blocks came from other nodes before and after the kill, and
all other workers served all they had to; else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cluster_machines import Machine, can_isolate, machines
from etcd_process import etcd_server
from report import machine as this_machine
from rich.console import Console
from rich.table import Table

_NODES = 4
_WORKERS_PER_NODE = 2
_KILLED = 2
_START_TIMEOUT_S = 60.0
_HERE = Path(__file__).parent
_ETCD_PORT = 2379


@dataclass
class Worker:
    """A worker process, what it said last, and how much of that was before the kill."""

    number: int
    node: int
    process: subprocess.Popen[str]
    log: IO[bytes]
    numbers: dict[str, Any] = field(default_factory=dict)
    at_kill: dict[str, Any] = field(default_factory=dict)
    ready: bool = False
    ended: bool = False


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Four nodes share their prefix caches.")
    parser.add_argument("--requests", type=int, default=1200, help="of the trace (default 1200)")
    parser.add_argument("--blocks", type=int, default=4000, help="capacity of a node (4000)")
    parser.add_argument("--slot-bytes", type=int, default=16384, help="of a block (16384)")
    parser.add_argument("--backend", default="auto", help="data plane (default auto)")
    parser.add_argument("--loopback", action="store_true", help="without namespaces")
    parser.add_argument("--json", default="", metavar="FILE", help="write the numbers here too")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="give up after")
    return parser.parse_args()


class Demo:
    """The processes of a run; `stack` ends them by their own ids."""

    def __init__(self, arguments: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self.arguments = arguments
        self.stack = stack
        self.name = f"/radix_cluster_{os.getpid()}"
        self.servers: list[subprocess.Popen[bytes]] = []
        self.workers: list[Worker] = []
        self.lines: queue.Queue[tuple[int, str | None]] = queue.Queue()

    def run(self, isolated: bool) -> None:
        nodes = self.stack.enter_context(machines(_NODES, isolated))
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        registry = self.stack.enter_context(etcd_server(nodes[0], Path(folder), _ETCD_PORT))
        for node in nodes:
            self._start_server(node, registry, Path(folder))
        for number in range(_NODES * _WORKERS_PER_NODE):
            self._start_worker(number, nodes[number % _NODES])
        self._serve()

    def server_name(self, node: Machine) -> str:
        return self.name if node.isolated else f"{self.name}_{node.number}"

    def _start_server(self, node: Machine, registry: str, folder: Path) -> None:
        arguments = self.arguments
        stride = -(-arguments.slot_bytes // 4096) * 4096
        token = folder / "token"
        if not token.exists():
            token.touch(0o600)
            token.write_text(os.urandom(16).hex())
        command = [sys.executable, "-m", "radixshmem_core.cli", "--name", self.server_name(node)]
        command += ["--data-bytes", str(arguments.blocks * stride), "--registry", registry]
        command += ["--expected-min-nodes", str(_NODES), "--cluster-token-file", str(token)]
        command += ["--node-name", f"node{node.number}", "--rpc-address", node.address]
        command += ["--transfer-backend", arguments.backend]
        log = self._log()
        process = subprocess.Popen(node.boot(command), stdout=log, stderr=subprocess.STDOUT)
        self.servers.append(process)
        self.stack.callback(_end, process, log, f"the server of node {node.number}")

    def _start_worker(self, number: int, node: Machine) -> None:
        arguments = self.arguments
        command = [sys.executable, str(_HERE / "cluster_worker.py")]
        command += ["--server", self.server_name(node), "--number", str(number)]
        command += ["--workers", str(_NODES * _WORKERS_PER_NODE), "--nodes", str(_NODES)]
        command += ["--requests", str(arguments.requests)]
        command += ["--slot-bytes", str(arguments.slot_bytes)]
        pid = self.servers[node.number].pid
        _await_socket(pid, self.server_name(node), node.isolated)
        log = self._log()
        process = subprocess.Popen(
            node.join(pid, command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self.workers.append(Worker(number, node.number, process, log))
        self.stack.callback(process.kill)
        threading.Thread(target=self._read, args=(number, process), daemon=True).start()

    def _log(self) -> IO[bytes]:
        return self.stack.enter_context(tempfile.TemporaryFile())

    def _read(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.put((number, line))
        self.lines.put((number, None))

    def _serve(self) -> None:
        deadline = time.monotonic() + self.arguments.timeout
        begun = killed = False
        while any(not worker.ended for worker in self.workers):
            try:
                number, line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError("workers still had work when time was up") from None
            worker = self.workers[number]
            if line is None:
                worker.ended = True
                if worker.process.wait() != 0 and not (killed and worker.node == _KILLED):
                    worker.log.seek(0)
                    raise RuntimeError(f"worker {number} failed:\n{worker.log.read().decode()}")
                continue
            said = json.loads(line)
            if "ready" in said:
                worker.ready = True
            else:
                worker.numbers = said
            if not begun and all(w.ready for w in self.workers):
                begun = True
                for other in self.workers:
                    assert other.process.stdin is not None
                    other.process.stdin.write("\n")
                    other.process.stdin.flush()
            served = sum(w.numbers.get("requests", 0) for w in self.workers)
            if not killed and served >= self.arguments.requests // 2:
                killed = True
                self._kill_a_node()

    def _kill_a_node(self) -> None:
        print(f"killing node {_KILLED}, its server and its workers, in the middle", flush=True)
        for worker in self.workers:
            worker.at_kill = dict(worker.numbers)
            if worker.node == _KILLED:
                worker.process.kill()
        self.servers[_KILLED].kill()
        self.stack.callback(self._remove_what_it_left)

    def _remove_what_it_left(self) -> None:
        """On loopback: the files that a killed server leaves to the next start of its name."""
        for path in Path("/dev/shm").glob(f"{self.name[1:]}_{_KILLED}*"):
            path.unlink()


def _await_socket(pid: int, name: str, isolated: bool) -> None:
    root = f"/proc/{pid}/root" if isolated else ""
    path = Path(f"{root}/dev/shm{name}.sock")
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server {name} has made no socket at {path}")
        time.sleep(0.02)


def _end(process: subprocess.Popen[bytes], log: IO[bytes], what: str) -> None:
    killed = process.poll() is not None and process.returncode == -signal.SIGKILL
    process.terminate()
    try:
        status = process.wait(20.0)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    if status != 0 and not killed:
        log.seek(0)
        print(f"{what} ended with {status}:\n{log.read().decode(errors='replace')}")


def summarize(demo: Demo) -> dict[str, Any]:
    def total(name: str, workers: list[Worker]) -> Any:
        return sum(worker.numbers.get(name, 0) for worker in workers)

    workers = demo.workers
    survivors = [w for w in workers if w.node != _KILLED]
    referenced = total("referenced", workers)
    hit, remote = total("hit", workers), total("remote", workers)
    rounds = [0] * 8
    for worker in workers:
        for number, count in enumerate(worker.numbers.get("lookups_by_rounds", [])):
            rounds[number] += count
    lookups = max(1, sum(rounds))
    return {
        "requests": total("requests", workers),
        "hit_ratio": hit / max(1, referenced),
        "hit_ratio_local": (hit - remote) / max(1, referenced),
        "hit_ratio_remote": remote / max(1, referenced),
        "remote_blocks": remote,
        "remote_blocks_after_kill": total("remote", survivors)
        - sum(w.at_kill.get("remote", 0) for w in survivors),
        "rounds_per_lookup": sum(n * count for n, count in enumerate(rounds)) / lookups,
        "lookups_by_rounds": rounds,
        "pull_gb_s": total("remote_bytes", workers) / max(1e-9, total("remote_s", workers)) / 1e9,
        "transports": sorted({t for w in workers for t in w.numbers.get("transports", [])}),
        "failed_pulls": total("failures", workers),
        "wrong_bytes": total("wrong_bytes", workers),
        "first_wrong": next(filter(None, (w.numbers.get("first_wrong") for w in workers)), ""),
    }


def print_summary(figures: dict[str, Any], where: str) -> None:
    table = Table(title=f"\n[bold]{_NODES} nodes, {where}[/]", title_justify="left", box=None)
    table.add_column("")
    table.add_column("", justify="right")
    rows = {
        "requests served": f"{figures['requests']:,}",
        "hit ratio, local blocks": f"{figures['hit_ratio_local']:.4f}",
        "hit ratio, blocks of other nodes": f"{figures['hit_ratio_remote']:.4f}",
        "blocks pulled": f"{figures['remote_blocks']:,}",
        "  after the kill": f"{figures['remote_blocks_after_kill']:,}",
        "indexes read over": ", ".join(figures["transports"]),
        "rounds per lookup": f"{figures['rounds_per_lookup']:.2f}",
        "pull, lookup and lease included": f"{figures['pull_gb_s']:.3f} GB/s",
        "pulls that failed in part": f"{figures['failed_pulls']:,}",
        "wrong bytes": f"{figures['wrong_bytes']}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)
    print(this_machine())


def problems_of(demo: Demo, figures: dict[str, Any]) -> list[str]:
    problems = []
    if figures["wrong_bytes"]:
        problems.append(f"{figures['wrong_bytes']} wrong bytes: {figures['first_wrong']}")
    if not figures["remote_blocks"] or not figures["remote_blocks_after_kill"]:
        problems.append("no block came from another node, before or after the kill")
    share = len(demo.workers)
    for worker in demo.workers:
        expected = len(range(worker.number, demo.arguments.requests, share))
        served = worker.numbers.get("requests", 0)
        if worker.node != _KILLED and served != expected:
            problems.append(f"worker {worker.number} served {served} of {expected} requests")
    return problems


def main() -> int:
    arguments = parse_arguments()
    reason = "asked for" if arguments.loopback else can_isolate()
    where = f"on loopback ({reason})" if reason else "each in namespaces of its own"
    print(f"starting etcd and {_NODES} radix-servers, {where}", flush=True)
    with contextlib.ExitStack() as stack:
        demo = Demo(arguments, stack)
        try:
            demo.run(isolated=not reason)
        except (RuntimeError, TimeoutError, OSError) as error:
            print(f"demo: FAILED: {error}", file=sys.stderr)
            return 1
    figures = summarize(demo)
    print_summary(figures, where)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n")
    problems = problems_of(demo, figures)
    for problem in problems:
        print(f"demo: FAILED: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
