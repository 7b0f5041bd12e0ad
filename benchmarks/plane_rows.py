# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Rows about the data planes: a pull against memcpy, or against the same engine driven bare."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from bare_engine import BLOCK_BYTES, BLOCKS, IN_FLIGHT
from rows import Row, interleave, skipped, time_text

import radixshmem
from radixshmem._data import TRANSFER_BACKENDS

__all__ = ["bare_engine", "plane_rows", "pulls"]

_PROGRAM = str(Path(__file__).with_name("bare_engine.py"))
_TIMEOUT_S = 60.0
_ROUNDS = 20

Other = Callable[[], contextlib.AbstractContextManager[Callable[[], float]]]
Nodes = Callable[..., contextlib.AbstractContextManager[list[radixshmem.RadixClient]]]


def plane_rows(rounds: int, nodes: Nodes) -> list[Row]:
    """`nodes(count, slot_bytes, slots, *flags)` are clients of servers in one cluster."""
    rows = [_row(rounds, nodes, "builtin", "builtin and shm", "memcpy", _memcpy, 0.7)]
    for backend in ("mooncake", "nixl"):
        bare = partial(bare_engine, backend)
        rows.append(_row(rounds, nodes, backend, backend, "the engine driven bare", bare, 0.9))
    return rows


def _row(
    rounds: int, nodes: Nodes, backend: str, over: str, beside: str, other: Other, bound: float
) -> Row:
    """How fast a pull is, as a share of the speed of `other`."""
    figure = f"pull of {BLOCKS} x 1 MiB over {over}, against {beside}"
    if backend not in TRANSFER_BACKENDS:
        return skipped(figure, f"{backend} is not installed; run scripts/build_{backend}.sh")
    flags = ("--transfer-backend", backend)
    with (
        other() as theirs,
        nodes(2, BLOCK_BYTES, 4 * IN_FLIGHT * BLOCKS, *flags) as (owner, seeker),
    ):
        samples = interleave(max(rounds, _ROUNDS), {"pull": pulls(owner, seeker), "other": theirs})
    speeds = [t / p for p, t in zip(samples["pull"], samples["other"], strict=True)]
    return Row(
        figure=figure,
        measured=f"pull: {time_text(statistics.median(samples['pull']))}",
        reference=f"{beside}: {time_text(statistics.median(samples['other']))}",
        value=statistics.median(speeds),
        bound=bound,
        at_least=True,
        note=f"{IN_FLIGHT} in flight",
    )


@contextlib.contextmanager
def _memcpy() -> Iterator[Callable[[], float]]:
    """Seconds of one copy of as many bytes."""
    size = BLOCKS * BLOCK_BYTES
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    copy = ctypes.CDLL(None).memcpy
    copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    def measure() -> float:
        begin = time.perf_counter()
        for _ in range(IN_FLIGHT):
            copy(target.ctypes.data, source.ctypes.data, size)
        return (time.perf_counter() - begin) / IN_FLIGHT

    yield measure


def pulls(owner: radixshmem.RadixClient, seeker: radixshmem.RadixClient) -> Callable[[], float]:
    """Seconds of one pull when IN_FLIGHT of them run at the same time."""
    rng = np.random.default_rng(20)
    paths = [rng.integers(0, 2**64, BLOCKS, np.uint64) for _ in range(IN_FLIGHT)]
    for path in paths:
        slots = owner.allocate_slots(BLOCKS)
        if owner.insert(path, slots).error or not owner.flush(_TIMEOUT_S):
            raise RuntimeError("the benchmark's path could not be stored and published")

    def measure() -> float:
        seeker.reset()
        begin = time.perf_counter()
        jobs = [seeker.pull_async(path) for path in paths]
        results = [job.wait(_TIMEOUT_S) for job in jobs]
        taken = time.perf_counter() - begin
        for result in results:
            if result.remote_blocks != BLOCKS:
                raise RuntimeError(f"a pull brought {result.remote_blocks} blocks")
            result.finalize()
        return taken / IN_FLIGHT

    return measure


@contextlib.contextmanager
def bare_engine(backend: str) -> Iterator[Callable[[], float]]:
    """Seconds of one read of the same blocks; its processes stand still between measurements."""
    with contextlib.ExitStack() as stack:
        owner = _start(stack, backend, "OWNER")
        metadata = _line(owner)
        reader = _start(stack, backend, "READER", metadata)
        if _line(reader) != "ready":
            raise RuntimeError(f"the bare {backend} does not connect")
        both = (owner, reader)

        def measure() -> float:
            _signal(both, signal.SIGCONT)
            assert reader.stdin is not None
            reader.stdin.write("go\n")
            reader.stdin.flush()
            taken = float(_line(reader))
            _signal(both, signal.SIGSTOP)
            return taken / IN_FLIGHT

        yield measure


def _signal(processes: tuple[subprocess.Popen[str], ...], number: int) -> None:
    for process in processes:
        os.kill(process.pid, number)


def _start(stack: contextlib.ExitStack, *arguments: str) -> subprocess.Popen[str]:
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, _PROGRAM, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    stack.callback(process.kill)
    return process


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{' '.join(map(str, process.args[1:4]))} ended; its words are above")
    return line.strip()
