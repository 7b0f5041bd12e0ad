# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Rows about several nodes: lookups and pulls between radix-servers of this machine."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from coprocess import RadixBench
from plane_rows import plane_rows
from rows import Row, bounded, interleave, skipped, time_text
from server_process import own_name, radix_server, server_status

import radixshmem

__all__ = ["cluster_rows"]

_BLOCKS = 512
_QUERIES = 50  # per sample
_FLUSHES = 200
_TIMEOUT_S = 60.0

Hashes = npt.NDArray[np.uint64]


@contextlib.contextmanager
def nodes(
    count: int, slot_bytes: int, slots: int, *flags: str
) -> Iterator[list[radixshmem.RadixClient]]:
    """Clients of `count` servers in one cluster, each connected to all."""
    geometry = radixshmem.Geometry(16, slot_bytes, fingerprint="bench")
    with contextlib.ExitStack() as stack:
        registry = stack.enter_context(tempfile.TemporaryDirectory())
        clients = []
        for number in range(count):
            name = own_name(f"bench_cluster{number}")
            own = ("--data-bytes", str(slots * slot_bytes), "--node-name", f"n{number}")
            stack.enter_context(
                radix_server(
                    name, *own, "--registry", f"file://{registry}", "--settle-ms", "50", *flags
                )
            )
            clients.append(stack.enter_context(radixshmem.RadixClient(name, geometry)))
        for client in clients:
            client.wait_ready(_TIMEOUT_S)
        _await(lambda: all(_peers_read(c) == count for c in clients))
        _await(lambda: all(_at_rest(client.name, count) for client in clients))
        yield clients


def _at_rest(name: str, count: int) -> bool:
    """Whether this server sees nobody who is still warming."""
    seen = server_status(name)["cluster"]["nodes"]
    return sum(row["state"] == "live" for row in seen) == count - 1


def _peers_read(client: radixshmem.RadixClient) -> int:
    return sum(row["transport"] != "" for row in client.peer_connections())


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the nodes of the benchmark do not find each other")
        time.sleep(0.05)


def cluster_rows(executable: str, rounds: int) -> list[Row]:
    """`executable`: radix_bench, for the round trips that lookups over TCP are compared with."""
    rows = [_lookup_shm(rounds)]
    for count, bound in ((2, 3.0), (4, 6.0)):
        rows.append(_lookup_tcp(count, bound, executable, rounds))
    rows.append(_flush())
    return [*rows, *plane_rows(rounds, nodes)]


def _path(seed: int, count: int = _BLOCKS) -> Hashes:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


def _put(client: radixshmem.RadixClient, path: Hashes) -> None:
    slots = client.allocate_slots(len(path))
    if client.insert(path, slots).error or not client.flush(_TIMEOUT_S):
        raise RuntimeError("the benchmark's path could not be stored and published")


def _timed(call: Callable[[], object], count: int) -> Callable[[], float]:
    def measure() -> float:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - begin) / count

    return measure


def _found(client: radixshmem.RadixClient, path: Hashes) -> Callable[[], object]:
    def query() -> None:
        if client.query(path).common_hit != len(path):
            raise RuntimeError("a path of another node was not found whole")

    query()
    return query


def _lookup_shm(rounds: int) -> Row:
    figure = "512 blocks of another node over shm, against a local query of them"
    with nodes(2, 4096, 2048) as (owner, seeker):
        path = _path(1)
        _put(owner, path)
        samples = interleave(
            rounds,
            {
                "remote": _timed(_found(seeker, path), _QUERIES),
                "local": _timed(lambda: owner.query(path, local_only=True), _QUERIES),
            },
        )
    return bounded(figure, samples, "remote", "local", 12.0)


def _lookup_tcp(count: int, bound: float, executable: str, rounds: int) -> Row:
    figure = f"512 blocks of another of {count} nodes over tcp, against a loopback round trip"
    if not executable:
        return skipped(figure, "needs radix_bench for the round trip")
    with (
        nodes(count, 4096, 2048, "--index-transport", "tcp") as clients,
        RadixBench(executable) as bench,
    ):
        path = _path(2)
        _put(clients[0], path)
        before = clients[1].lookup_figures()
        samples = interleave(
            rounds,
            {
                "lookup": _timed(_found(clients[1], path), _QUERIES),
                "round trip of 64 B": lambda: bench.measure("loopback"),
            },
        )
        after = clients[1].lookup_figures()
        lookups = after["lookups"] - before["lookups"]
        note = f"{(after['rounds'] - before['rounds']) / lookups:.2f} rounds"
    return bounded(figure, samples, "lookup", "round trip of 64 B", bound, note)


def _flush() -> Row:
    """Its p50 is bounded by a row of its own kind: milliseconds."""
    with nodes(4, 4096, 65536) as clients:
        times = []
        for number in range(_FLUSHES):
            client = clients[number % 4]
            path = _path(1000 + number, 64)
            client.insert(path, client.allocate_slots(len(path)))
            begin = time.perf_counter()
            if not client.flush(_TIMEOUT_S):
                raise RuntimeError("a flush of the benchmark ended at its deadline")
            times.append(time.perf_counter() - begin)
    p99 = float(np.percentile(times, 99))
    return Row(
        figure="flush on four nodes: p99",
        measured=f"p50 {time_text(statistics.median(times))} (at most 3 ms)",
        reference="64 new blocks each time",
        value=p99 * 1e3,
        bound=10.0,
        unit="ms",
    )
