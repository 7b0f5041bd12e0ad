# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The processes of the pull soak. Every byte of a slot follows from the hash of its block.

`owner` inserts random paths into a pool that is too small for them, so that slots are used again
and again; `server` is the node of the pullers, with a data plane that delays some transfers and
with short leases; `puller` pulls random paths and compares all bytes of what it gets.
"""

from __future__ import annotations

import collections
import itertools
import json
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from e2e.cluster.gated_plane import GatedPlane, gate_planes
from e2e.cluster.nodes import Hashes, fill
from e2e.harness import Process, eventually, path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.cluster import pulls
from radixshmem_core.cluster.planes import PeerKey, Transfer
from radixshmem_core.config import ServerConfig
from radixshmem_core.pull import PullJob
from radixshmem_core.server import RadixServer
from radixshmem_core.values import Geometry

SLOT_BYTES = 1000
GEOMETRY = Geometry(16, SLOT_BYTES, slot_align=1024, register_chunk_tokens=128)
PATHS = 120
LEASE_S = 0.3
STOP_S = 0.6  # longer than the lease
PAUSE_S = 2.0
_OUTSTANDING = 10
_INSERTS_PER_S = 200


class SoakProcess(Process):
    """The starter's end; `words` are those of `main`."""

    _PROGRAM = (
        "import sys; sys.path.insert(0, sys.argv.pop(1));"
        "from e2e.cluster.soak import main; main(*sys.argv[1:])"
    )

    def __init__(self, *words: str) -> None:
        super().__init__("-c", self._PROGRAM, str(Path(__file__).parents[2]), *words)

    def ask(self, text: str) -> dict[str, Any]:
        self.tell(text)
        answer: dict[str, Any] = json.loads(self.line())
        return answer


def main(role: str, *words: str) -> None:
    {"owner": run_owner, "server": run_server, "puller": run_puller}[role](*words)


def path_of(number: int) -> Hashes:
    return path_hashes(8 * (1 + number % 3), 1000 + number)


def rows(client: RadixClient) -> npt.NDArray[np.uint8]:
    """[slots, bytes]: the slots as an array."""
    assert client.store is not None
    pool = client.store.pool(0)
    view = np.frombuffer(client.store.pool_view(0), np.uint8)
    return view.reshape(pool.num_slots, pool.slot_bytes)[:, :SLOT_BYTES]


def config_of(name: str, node: str, registry: str, backend: str, data_bytes: str) -> ServerConfig:
    return ServerConfig(
        name,
        data_bytes=data_bytes,
        node_name=node,
        registry=registry,
        transfer_backend=backend,
        settle_ms=50,
        prefault=False,
        background_evict_ratio=0.0,
    )


# ---------------------------------------------------------------- an owner


def run_owner(name: str, node: str, registry: str, backend: str) -> None:
    """Until stdin ends."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    rng = random.Random()
    config = config_of(name, node, registry, backend, "768K")
    with RadixServer(config), RadixClient(name, GEOMETRY) as client:
        print("ready", flush=True)
        slots_of = rows(client)
        while not ended.wait(1 / _INSERTS_PER_S):
            path = path_of(rng.randrange(PATHS))
            here = client.query(path, local_only=True).common_hit
            slots = client.allocate_slots(len(path) - here)
            end = here + len(slots)
            slots_of[slots] = fill(path[here:end], SLOT_BYTES)
            client.insert(path[:end], slots, here)
        del slots_of


# ---------------------------------------------------------------- the pullers' server


class DelayingPlane(GatedPlane):
    """Some transfers begin late, some are seen late: the lease may have run out."""

    def __init__(self, plane: Any) -> None:
        super().__init__(plane)
        self._rng = random.Random()

    def read(self, peer: PeerKey, *blocks: Any) -> Transfer:
        self.reads += 1
        kind = self._rng.random()
        if kind < 0.02:
            gate = threading.Event()
            timer = threading.Timer(self._rng.random() * 4 * LEASE_S, gate.set)
            timer.daemon = True
            timer.start()
            return self.behind(gate, peer, *blocks)
        return self._plane.read(peer, *blocks)


def run_server(name: str, node: str, registry: str, backend: str, confirm: str) -> None:
    """Answers each line of stdin with its figures. With `confirm` "no" leases are not checked at
    the end of a transfer, which must be seen."""
    pulls._MAX_LEASE_S = LEASE_S  # type: ignore[misc]
    if confirm == "no":

        async def believe(*_: object) -> None:
            pass

        pulls.Puller._confirm = believe  # type: ignore[method-assign, assignment]
    with pytest.MonkeyPatch.context() as patch:
        gate_planes(patch, DelayingPlane)
        config = config_of(name, node, registry, backend, "256K")
        with RadixServer(config) as server, RadixClient(name, GEOMETRY):
            print("ready", flush=True)
            for _ in sys.stdin:
                print(json.dumps(server.status()["cluster"]["pulls"]), flush=True)


# ---------------------------------------------------------------- a puller


def run_puller(name: str, count: str) -> None:
    """`count` pulls of something that a peer claims to have; says what came."""
    totals = {"pulls": 0, "remote_blocks": 0, "blocks": 0, "wrong": 0}
    rng = random.Random()
    with RadixClient(name, GEOMETRY) as client:
        slots_of = rows(client)
        jobs: collections.deque[tuple[Hashes, PullJob]] = collections.deque()
        while totals["pulls"] < int(count):
            path = path_of(rng.randrange(PATHS))
            timeout_ms = rng.choice((100, 500, 2000))
            jobs.append((path, client.pull_async(path, timeout_ms=timeout_ms)))
            if len(jobs) >= _OUTSTANDING:
                jobs.rotate(-next((at for at, (_, job) in enumerate(jobs) if job.done()), 0))
                collect(*jobs.popleft(), slots_of, totals)
        while jobs:
            collect(*jobs.popleft(), slots_of, totals)
        del slots_of
    print(json.dumps(totals), flush=True)


def collect(
    path: Hashes, job: PullJob, slots_of: npt.NDArray[np.uint8], totals: dict[str, int]
) -> None:
    result = job.wait(60)
    right = slots_of[result.full_slots] == fill(path[: result.common_hit], SLOT_BYTES)
    totals["wrong"] += int((~right.all(axis=1)).sum())
    totals["blocks"] += result.common_hit
    totals["remote_blocks"] += result.remote_blocks
    totals["pulls"] += job.planned_hit > job.local_hit
    result.finalize()


# ---------------------------------------------------------------- all of it


class Soak:
    """Two owners, of which one is stopped and one is killed now and then; one node of pullers."""

    def __init__(self, prefix: str, registry: str, backend: str, confirm: bool = True) -> None:
        self._prefix = prefix
        self._cluster = registry, backend
        self._owners = [self._owner(0), self._owner(1)]
        self._name = f"{prefix}_b"
        confirms = "yes" if confirm else "no"
        self._server = SoakProcess("server", self._name, "b", *self._cluster, confirms)
        self._all: list[SoakProcess] = [*self._owners, self._server]
        for process in self._all:
            assert process.line() == "ready"
        self.stops = self.kills = 0

    def _owner(self, number: int) -> SoakProcess:
        return SoakProcess("owner", f"{self._prefix}_{number}", f"n{number}", *self._cluster)

    def run(self, count: int, pullers: int = 2, deadline_s: float = 600) -> dict[str, int]:
        """At least `count` pulls. The sums of what the pullers say, and the server's figures."""
        each = str(-(-count // pullers))
        working = [SoakProcess("puller", self._name, each) for _ in range(pullers)]
        self._all += working
        end = time.monotonic() + deadline_s
        turns = itertools.cycle((self._stop_one, self._kill_one))
        while any(process.running for process in working):
            assert time.monotonic() < end, f"{count} pulls are not done in {deadline_s} s"
            next(turns)()
            time.sleep(PAUSE_S)  # the pullers work undisturbed
        totals: collections.Counter[str] = collections.Counter()
        for process in working:
            totals.update(json.loads(process.line()))
        eventually(lambda: self._server.ask("")["kept_back_slots"] == 0, "all slots come back")
        return {**totals, **self._server.ask("")}

    def _stop_one(self) -> None:
        self._owners[0].signal(signal.SIGSTOP)
        time.sleep(STOP_S)  # as long as it is stopped
        self._owners[0].signal(signal.SIGCONT)
        self.stops += 1

    def _kill_one(self) -> None:
        self._owners[1].kill()
        self._owners[1] = self._owner(1)
        self._all.append(self._owners[1])
        assert self._owners[1].line() == "ready"
        self.kills += 1

    def close(self) -> None:
        for process in reversed(self._all):
            process.kill()
        for file in Path("/dev/shm").glob(f"{self._prefix[1:]}_*"):
            file.unlink()
