# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Rows of the index as an engine process sees it, through the Python client."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import workload
from coprocess import RadixBench
from peers import DynamoTree, SglangTree, store_event
from rows import Row, bounded, interleave, skipped
from server_process import own_name, radix_server, server_status
from workload import Workload

import radixshmem

__all__ = ["evict_rows", "fill", "index_server", "peer_rows", "sglang_tree_rows", "tails"]

_QUERIES = 200  # per sample
_INSERTS = 100
_SHORT_BLOCKS = 512
_TAIL_BLOCKS = 64
_GEOMETRY = radixshmem.Geometry(workload.BLOCK_TOKENS, 32768)

Hashes = npt.NDArray[np.uint64]


@contextlib.contextmanager
def index_server(purpose: str, slots: int, *flags: str) -> Iterator[radixshmem.RadixClient]:
    """A client of a new index-only server; its background evictor is off."""
    name = own_name(f"bench_{purpose}")
    server = radix_server(
        name, "--index-slots", str(slots), "--background-evict-ratio", "0", *flags
    )
    with server, radixshmem.RadixClient(name, _GEOMETRY) as client:
        client.wait_ready(60.0)
        yield client


def fill(client: radixshmem.RadixClient, load: Workload) -> list[bytes]:
    """Insert the whole workload turn by turn. Returns: the same as events for Dynamo's tree."""
    events: list[bytes] = []
    for conversation, end in load.inserts.tolist():
        path = load.path(conversation)[:end]
        hit = client.query(path).common_hit
        if hit == end:
            continue
        slots = client.allocate_slots(end - hit)
        outcome = client.insert(path, slots, hit)
        if outcome.landed != (hit, end):
            raise RuntimeError(
                f"insert of blocks [{hit}, {end}) landed as {outcome.landed}, error "
                f"{outcome.error}: the index is smaller than the workload"
            )
        events.append(store_event(path, hit, len(events)))
    return events


def tails(seed: int) -> Iterator[Hashes]:
    """Endless new runs of 64 blocks."""
    random = np.random.default_rng(seed)
    while True:
        yield random.integers(1, 2**63 - 1, size=_TAIL_BLOCKS, dtype=np.uint64)


class _Ours:
    """Timed operations of our client on a filled index."""

    def __init__(self, client: radixshmem.RadixClient, load: Workload) -> None:
        self._client = client
        self._paths = [load.path(conversation) for conversation in range(load.short)]
        self._random = np.random.default_rng(1)
        self._tails = tails(2)

    def choose(self, count: int) -> list[int]:
        """Random short conversations."""
        chosen: list[int] = self._random.integers(0, len(self._paths), count).tolist()
        return chosen

    def query(self) -> float:
        chosen = [self._paths[i] for i in self.choose(_QUERIES)]
        query = self._client.query
        begin = time.perf_counter()
        for path in chosen:
            query(path, lock=True).finalize()
        return (time.perf_counter() - begin) / _QUERIES

    def insert(self) -> float:
        chosen = [
            np.concatenate([self._paths[i], next(self._tails)]) for i in self.choose(_INSERTS)
        ]
        client = self._client
        begin = time.perf_counter()
        for path in chosen:
            client.insert(path, client.allocate_slots(_TAIL_BLOCKS), _SHORT_BLOCKS)
        return (time.perf_counter() - begin) / _INSERTS


class _Dynamo:
    """The same operations on Dynamo's tree, with its arguments prepared beforehand."""

    def __init__(self, tree: DynamoTree, ours: _Ours, load: Workload) -> None:
        self._tree = tree
        self._ours = ours
        self._lists = [load.path(conversation).tolist() for conversation in range(load.short)]
        self._tails = tails(3)
        if tree.match(self._lists[0]) != _SHORT_BLOCKS:
            raise RuntimeError("Dynamo's tree does not find what was stored in it")

    def query(self) -> float:
        chosen = [self._lists[i] for i in self._ours.choose(_QUERIES)]
        find = self._tree.find_matches
        begin = time.perf_counter()
        for path in chosen:
            find(path)
        return (time.perf_counter() - begin) / _QUERIES

    def insert(self) -> float:
        events = [
            store_event([*self._lists[i], *next(self._tails).tolist()], _SHORT_BLOCKS)
            for i in self._ours.choose(_INSERTS)
        ]
        store = self._tree.store
        begin = time.perf_counter()
        for event in events:
            store(event)
        return (time.perf_counter() - begin) / _INSERTS


def peer_rows(load: Workload, rounds: int, extra_slots: int = 200_000) -> list[Row]:
    """Query and insert against Dynamo's tree and SGLang's, all holding the whole workload."""
    figures = (
        "query 512 blocks, lock=True + finalize",
        "allocate + insert 64 blocks on a 512-block prefix",
    )
    try:
        tree = DynamoTree()
    except ImportError as error:
        return [skipped(figure, str(error)) for figure in figures]
    with index_server("peer", load.distinct_blocks() + extra_slots) as client:
        for event in fill(client, load):
            tree.store(event)
        ours = _Ours(client, load)
        dynamo = _Dynamo(tree, ours, load)
        samples = interleave(
            rounds,
            {
                "query": ours.query,
                "Dynamo find_matches": dynamo.query,
                "allocate + insert": ours.insert,
                "Dynamo store event": dynamo.insert,
            },
        )
    return [
        bounded(figures[0], samples, "query", "Dynamo find_matches", 1 / 8),
        bounded(figures[1], samples, "allocate + insert", "Dynamo store event", 1 / 5),
    ]


def sglang_tree_rows(load: Workload, rounds: int) -> list[Row]:
    """The same match in SGLang's own Python tree, by tokens. For information: no bound."""
    tree = SglangTree(workload.BLOCK_TOKENS)
    for conversation, end in load.inserts.tolist():
        tree.insert(workload.tokens_of(load.path(conversation)[:end]))
    with index_server("engine", load.distinct_blocks()) as client:
        fill(client, load)
        ours = _Ours(client, load)
        keys = [tree.key(workload.tokens_of(load.path(c))) for c in range(load.short)]
        if tree.match(keys[0]) != _SHORT_BLOCKS * workload.BLOCK_TOKENS:
            raise RuntimeError("SGLang's tree does not find what was stored in it")

        def theirs() -> float:
            chosen = [keys[i] for i in ours.choose(_QUERIES)]
            begin = time.perf_counter()
            for key in chosen:
                tree.match(key)
            return (time.perf_counter() - begin) / _QUERIES

        samples = interleave(rounds, {"query": ours.query, "SGLang match_prefix": theirs})
    figure = "SGLang: query 512 blocks, against SGLang's RadixCache"
    return [bounded(figure, samples, "query", "SGLang match_prefix", None)]


def evict_rows(load: Workload, rounds: int, bench: RadixBench | None) -> list[Row]:
    """Evict 64 + insert 64 at capacity, on the workload and on one of a tenth of its size."""
    figure = "evict 64 + insert 64 at capacity"
    small = workload.make(short=load.short // 10, long=2)
    capacity, small_capacity = load.distinct_blocks(), small.distinct_blocks()
    with (
        index_server("full", capacity) as client,
        index_server("small", small_capacity) as small_client,
    ):
        fill(client, load)
        fill(small_client, small)
        new_tails = tails(3)

        def replace(target: radixshmem.RadixClient) -> float:
            chosen = [next(new_tails) for _ in range(_INSERTS)]
            if target.mempool_free() > _TAIL_BLOCKS:
                raise RuntimeError(f"the pool is not full: {target.mempool_free()} free slots")
            begin = time.perf_counter()
            for path in chosen:
                target.insert(path, target.allocate_slots(_TAIL_BLOCKS))
            return (time.perf_counter() - begin) / _INSERTS

        measurements = {
            f"{small_capacity} blocks": lambda: replace(small_client),
            f"{capacity} blocks": lambda: replace(client),
        }
        if bench is not None:
            measurements["random access"] = lambda: bench.measure("walk")
        samples = interleave(rounds, measurements)
        steps = [_steps_per_victim(each.name) for each in (small_client, client)]
    ten_times = bounded(
        f"{figure}, {capacity / small_capacity:.0f}x the blocks",
        samples,
        f"{capacity} blocks",
        f"{small_capacity} blocks",
        2.0,
        note=f"{steps[0]:.2f} and {steps[1]:.2f} list steps per victim",
    )
    if bench is None:
        return [skipped(figure, "needs radix_bench for the random access"), ten_times]
    row = bounded(
        figure, samples, f"{capacity} blocks", "random access", 20.0, note="dependent accesses"
    )
    return [row, ten_times]


def _steps_per_victim(server_name: str) -> float:
    """Segments that evictions looked at, for each that they cut."""
    counters = server_status(server_name)["counters"]
    return float(counters["eviction_steps"]) / float(counters["eviction_victims"])
