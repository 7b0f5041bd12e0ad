# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Kills client and server processes at random moments while others work, and checks every byte.

    python kill_campaign.py NAME CLIENT_KILLS SERVER_KILLS SEED

This process only forks and kills: it has no threads, so its children start clean. Workers do what
engines do on a pool that is far too small. The last line of its output is a JSON object.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import RadixError, ServerNotReady
from radixshmem_core.server import RadixServer
from radixshmem_core.values import Geometry

GEOMETRY = Geometry(16, 4096, slot_align=4096)
WORKERS = 3
PATHS, PATH_BLOCKS, BRANCHES = 6, 60, 3  # more blocks than the 256 slots hold
DEADLINE_S = 30.0
WRONG_BYTES, FAILED = 7, 8


class Board(ctypes.Structure):
    """Counters that all processes share."""

    _fields_ = (
        ("operations", ctypes.c_uint64 * WORKERS),
        ("hit_blocks", ctypes.c_uint64 * WORKERS),
        ("adoptions", ctypes.c_uint64),
        ("fresh_starts", ctypes.c_uint64),
    )


def make_path(rng: random.Random) -> np.ndarray:
    """Hashes of one of a few paths that share beginnings; equal hashes mean equal prefixes."""
    path, branch = rng.randrange(PATHS), rng.randrange(BRANCHES)
    fork = rng.choice((8, 20, 47))
    trunk = np.random.default_rng([1, path]).integers(0, 2**64, PATH_BLOCKS, np.uint64)
    tail = np.random.default_rng([2, path, branch, fork]).integers(0, 2**64, 40, np.uint64)
    return np.concatenate([trunk[:fork], tail])[: rng.randint(1, 80)]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {DEADLINE_S} s: {what}")
        time.sleep(0.005)


# ---------------------------------------------------------------- the processes


def connect(name: str) -> RadixClient:
    found: list[RadixClient] = []

    def attempt() -> bool:
        try:
            found.append(RadixClient(name, GEOMETRY))
        except (ServerNotReady, TimeoutError):
            return False
        return True

    wait_for(attempt, "a server to connect to")
    return found[0]


def work_once(client: RadixClient, rng: random.Random, kept: list[Any], held: list[Any]) -> int:
    """One request of an engine; returns how many blocks were hit."""
    hashes = make_path(rng)
    cached = client.pull_async(hashes).wait()
    hit = cached.common_hit
    for number, slot in enumerate(cached.full_slots):
        if (np.frombuffer(client.slot_view(slot), np.uint64) != hashes[number]).any():
            print(f"wrong bytes in slot {slot} for block {number}", file=sys.stderr, flush=True)
            os._exit(WRONG_BYTES)
    kept.append(cached)  # some pins live on for a while
    while len(kept) > 3:
        kept.pop(rng.randrange(len(kept))).finalize()
    slots = client.allocate_slots(len(hashes) - hit)
    for number, slot in enumerate(slots, hit):
        np.frombuffer(client.slot_view(slot), np.uint64)[:] = hashes[number]
    if rng.random() < 0.9:
        client.insert(hashes[: hit + len(slots)], slots, hit)
    else:
        held.append(slots)  # some slots stay with this process, perhaps until it dies
    while sum(map(len, held)) > 20:
        client.recycle_slots(held.pop())
    return hit


def worker(name: str, board: Board, number: int, seed: int) -> NoReturn:
    rng = random.Random(seed)
    kept: list[Any] = []
    held: list[Any] = []
    client = connect(name)
    while True:
        try:
            board.hit_blocks[number] += work_once(client, rng, kept, held)
            board.operations[number] += 1
        except ServerNotReady:
            time.sleep(0.005)
        except ValueError:  # held slots of an index that was replaced meanwhile
            held.clear()


def server(name: str, board: Board) -> NoReturn:
    def on_event(what: str, _: dict[str, Any]) -> None:
        board.adoptions += what == "adopted"
        board.fresh_starts += what == "waiting"

    config = ServerConfig(name, data_bytes="1M", quarantine_s=0.2, lock_timeout_s=5.0)
    with RadixServer(config, on_event=on_event):
        stop = signal.sigwait({signal.SIGTERM})
    os._exit(0 if stop == signal.SIGTERM else FAILED)


def final_check(name: str) -> NoReturn:
    """All workers are dead: everything they held must come back."""
    client = connect(name)
    index = client._index

    def given_back() -> bool:
        return client.mempool_used() == client.total_blocks() and len(index.clients()) == 2

    wait_for(given_back, "slots and entries of the dead")
    violations = index.check()
    print(*violations, sep="\n", file=sys.stderr, flush=True)
    clean = not violations and index.pins() == []
    client.close()
    os._exit(0 if clean else FAILED)


def fork(run: Callable[..., NoReturn], *arguments: Any) -> int:
    child = os.fork()
    if child:
        return child
    try:
        run(*arguments)
    except BaseException as error:
        print(f"{run.__name__}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(FAILED)


# ---------------------------------------------------------------- the killer


class Campaign:
    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = random.Random(seed)
        self.board = Board.from_buffer(mmap.mmap(-1, ctypes.sizeof(Board)))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.starts = 0
        self.server = fork(server, name, self.board)
        self.workers = [self.start_worker(number) for number in range(WORKERS)]

    def start_worker(self, number: int) -> int:
        return fork(worker, self.name, self.board, number, self.rng.randrange(2**32))

    def operations(self) -> int:
        return sum(self.board.operations)

    def look(self) -> None:
        """Nobody may have ended by itself."""
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            raise RadixError(f"process {pid} ended: {os.waitstatus_to_exitcode(status)}")

    def wait_for_work(self, amount: int) -> None:
        goal = self.operations() + amount

        def done() -> bool:
            self.look()
            return self.operations() >= goal

        wait_for(done, "operations of the workers")

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def run(self, client_kills: int, server_kills: int) -> None:
        order = ["client"] * client_kills + ["server"] * server_kills
        self.rng.shuffle(order)
        for victim in order:
            self.wait_for_work(self.rng.randint(1, 15))
            time.sleep(self.rng.random() * 0.003)  # any moment of an operation
            self.look()
            if victim == "client":
                number = self.rng.randrange(WORKERS)
                self.kill(self.workers[number])
                self.workers[number] = self.start_worker(number)
            else:
                if self.rng.random() < 0.7:  # the others die at their start
                    wait_for(self.server_started, "the start of the server")
                self.kill(self.server)
                self.starts = self.board.adoptions + self.board.fresh_starts
                self.server = fork(server, self.name, self.board)

    def server_started(self) -> bool:
        self.look()
        return self.board.adoptions + self.board.fresh_starts > self.starts

    def finish(self) -> None:
        self.wait_for_work(10)
        for pid in self.workers:
            self.kill(pid)
        check = fork(final_check, self.name)
        assert os.waitstatus_to_exitcode(os.waitpid(check, 0)[1]) == 0, "the final check failed"
        os.kill(self.server, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(self.server, 0)[1]) == 0

    def abort(self) -> None:
        for pid in (*self.workers, self.server):
            try:
                self.kill(pid)
            except (ProcessLookupError, ChildProcessError):
                continue


def main() -> None:
    name, client_kills, server_kills, seed = sys.argv[1], *map(int, sys.argv[2:5])
    campaign = Campaign(name, seed)
    try:
        campaign.run(client_kills, server_kills)
        campaign.finish()
    except BaseException:
        campaign.abort()
        raise
    board = campaign.board
    print(
        json.dumps(
            {
                "client_kills": client_kills,
                "server_kills": server_kills,
                "adoptions": board.adoptions,
                "fresh_starts": board.fresh_starts,
                "operations": campaign.operations(),
                "hit_blocks": sum(board.hit_blocks),
            }
        )
    )


if __name__ == "__main__":
    main()
