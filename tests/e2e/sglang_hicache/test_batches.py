# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the storage asks of the core for each of SGLang's batches, and what it does when refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from e2e.sglang_hicache.controllers import (
    Fetched,
    Rank,
    damage,
    keys_of,
    store_sidecar,
    tokens,
    used,
)
from e2e.sglang_hicache.pools import DRAFT, MAMBA, PAGE
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolName, PoolTransfer

from radixshmem import ComponentType, InsertError, RadixClient, fold_page_keys
from radixshmem.integrations.sglang_hicache.pages import Batch
from radixshmem.integrations.sglang_hicache.pools import TAG_BYTES
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer
from radixshmem_core.store import SlotStore

Start = Callable[..., Rank]


class Calls:
    """Of the core: slots of each copy that is more than tags, and deadlines of each flush."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copied_in: list[int] = []
        self.copied_out: list[int] = []
        self.flushed: list[float] = []
        self._count(monkeypatch, "copy_in", self.copied_in)
        self._count(monkeypatch, "copy_out", self.copied_out)
        flush = RadixClient.flush

        def flushing(client: RadixClient, timeout_s: float = 5.0) -> bool:
            self.flushed.append(timeout_s)
            return flush(client, timeout_s)

        monkeypatch.setattr(RadixClient, "flush", flushing)

    @staticmethod
    def _count(monkeypatch: pytest.MonkeyPatch, name: str, counts: list[int]) -> None:
        copy = getattr(SlotStore, name)

        def copying(store: SlotStore, slots: Any, ptrs: Any, sizes: Any, **where: Any) -> int:
            if sum(sizes) > TAG_BYTES:
                counts.append(len(slots))
            done: int = copy(store, slots, ptrs, sizes, **where)
            return done

        monkeypatch.setattr(SlotStore, name, copying)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def test_a_batch_is_one_copy_and_is_published_once(
    cache: RadixServer, start_rank: Start, calls: Calls
) -> None:
    rank = start_rank()
    assert rank.store(tokens(300)) == 300
    assert calls.copied_in == [128, 128, 44]
    assert calls.flushed == [0, 0, 0], "without waiting"
    assert rank.fetch(tokens(300)) == Fetched(300, 300, {})
    assert calls.copied_out == [128, 128, 44]
    assert rank.fetch(tokens(300), 290) == Fetched(10, 10, {})
    assert calls.copied_out[3:] == [10]


def test_of_pages_that_are_there_nothing_is_copied(
    cache: RadixServer, start_rank: Start, calls: Calls
) -> None:
    rank = start_rank()
    rank.store(tokens(20))
    assert rank.store(tokens(20)) == 20
    assert calls.copied_in == [20]
    assert rank.store(tokens(30)) == 30
    assert calls.copied_in == [20, 10]
    damage(cache, tokens(20), 7)
    assert rank.store(tokens(30)) == 30
    assert calls.copied_in == [20, 10, 1]


def test_a_sidecar_is_one_copy_more_and_is_published_with_its_kv(
    cache: RadixServer, start_rank: Start, calls: Calls
) -> None:
    rank = start_rank(DRAFT, MAMBA)
    assert rank.store(tokens(20)) == 20
    assert sorted(calls.copied_in) == [1, 20, 20]
    assert calls.flushed == [0]


@pytest.mark.parametrize(
    ("sidecars", "queries"), [((), 1), ((DRAFT,), 1), ((MAMBA,), 2)], ids=["kv", "draft", "mamba"]
)
def test_the_index_is_asked_once_more_for_last_pages_alone(
    cache: RadixServer,
    start_rank: Start,
    monkeypatch: pytest.MonkeyPatch,
    sidecars: Any,
    queries: int,
) -> None:
    """With a cluster each question may go to other nodes."""
    rank = start_rank(*sidecars)
    rank.store(tokens(20))
    asked: list[int] = []
    query = RadixClient.query

    def asking(client: RadixClient, path: Any, *rest: Any, **options: Any) -> Any:
        asked.append(len(path))
        return query(client, path, *rest, **options)

    monkeypatch.setattr(RadixClient, "query", asking)
    assert rank.query(tokens(20)).storage_hit_count == len(tokens(20))
    assert asked == [20] * queries


def test_each_batch_is_counted_for_metrics(cache: RadixServer, start_rank: Start) -> None:
    rank = start_rank()
    rank.store(tokens(300))
    rank.fetch(tokens(300), 290)
    figures = rank.storage.get_stats()
    assert (figures.backup_pgs, figures.prefetch_pgs) == ([128, 128, 44], [10])
    assert len(figures.backup_bandwidth) == 3
    assert all(rate > 0 for rate in figures.backup_bandwidth + figures.prefetch_bandwidth)
    assert rank.storage.get_stats().backup_pgs == []


@pytest.mark.parametrize("sidecars", [(), (DRAFT,), (MAMBA,)], ids=["kv", "draft", "mamba"])
def test_slots_are_pinned_while_they_are_copied(
    cache: RadixServer, start_rank: Start, monkeypatch: pytest.MonkeyPatch, sidecars: Any
) -> None:
    """Between a look-up and its copies somebody else may need the slots."""
    rank = start_rank(*sidecars)
    rank.store(tokens(20))
    damage(cache, tokens(20), 7)
    pinned: list[bool] = []
    with RadixClient(cache.config.name) as client:
        for name in ("read", "write", "intact"):
            call = getattr(Batch, name)

            def looked(*arguments: Any, call: Callable[..., Any] = call) -> Any:
                pinned.append(client.index._index.pins() != [])
                return call(*arguments)

            monkeypatch.setattr(Batch, name, looked)
        assert rank.store(tokens(20)) == 20
        stored = len(pinned)
        assert rank.fetch(tokens(20)).kv_pages == 20
        assert len(pinned) > stored >= 2
        assert all(pinned)
        assert client.index._index.pins() == []


@pytest.mark.parametrize("pool", [PoolName.KV, PoolName.DRAFT])
def test_a_page_that_is_damaged_while_it_is_copied_is_not_handed_out(
    cache: RadixServer, start_rank: Start, monkeypatch: pytest.MonkeyPatch, pool: PoolName
) -> None:
    rank = start_rank(DRAFT)
    path = tokens(20)
    rank.store(path)
    copy = SlotStore.copy_out

    def damaging(store: SlotStore, slots: Any, ptrs: Any, sizes: Any, **where: Any) -> int:
        if sum(sizes) > TAG_BYTES:
            damage(cache, path, 7)
        return copy(store, slots, ptrs, sizes, **where)

    monkeypatch.setattr(SlotStore, "copy_out", damaging)
    asked = PoolTransfer(pool, rank.group.alloc(20 * PAGE), keys=keys_of(path))
    found = rank.storage.batch_get_v2([asked], HiCacheStorageExtraInfo(prefix_keys=[]))
    assert found == {pool: [page != 7 for page in range(20)]}


@pytest.mark.parametrize("error", [InsertError.BUSY, InsertError.BAD_REQUEST])
@pytest.mark.parametrize("sidecars", [(), (DRAFT,), (MAMBA,)], ids=["kv", "draft", "mamba"])
def test_slots_that_the_index_does_not_take_are_given_back(
    cache: RadixServer,
    start_rank: Start,
    monkeypatch: pytest.MonkeyPatch,
    error: InsertError,
    sidecars: Any,
) -> None:
    rank = start_rank(*sidecars)
    with monkeypatch.context() as refusing:
        refusing.setattr(RadixClient, "insert", lambda *_, **__: SimpleNamespace(error=error))
        assert rank.store(tokens(20)) == 0
    assert used(cache) == 0
    assert rank.store(tokens(20)) == 20
    assert rank.fetch(tokens(20)).kv_pages == 20


def test_last_pages_that_the_index_does_not_take_are_not_said_to_be_stored(
    cache: RadixServer, start_rank: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = start_rank(MAMBA)
    assert rank.store(tokens(20), trailing={}) == 20
    busy = SimpleNamespace(error=InsertError.BUSY)
    with monkeypatch.context() as refusing:
        refusing.setattr(RadixClient, "insert", lambda *_, **__: busy)
        assert store_sidecar(rank, MAMBA, tokens(20), last=1) == 0
    assert rank.query(tokens(20)).storage_hit_count == 0
    with RadixClient(cache.config.name) as client:
        assert client.store is not None
        states = client.store.pool(ComponentType.MAMBA).num_slots
        slots = client.allocate_slots(states, ComponentType.MAMBA)
        assert len(slots) == states, "none is lost"
        client.recycle_slots(slots, ComponentType.MAMBA)
    assert store_sidecar(rank, MAMBA, tokens(20), last=1) == 1
    assert rank.query(tokens(20)).storage_hit_count == len(tokens(20))


def test_too_few_pins_are_told_and_nothing_is_stored(
    region_name: str, start_rank: Start, caplog: pytest.LogCaptureFixture
) -> None:
    with RadixServer(ServerConfig(region_name, data_bytes="1M", max_pins=16)):
        rank = start_rank()
        assert rank.store(tokens(10)) == 10
        client = rank.storage._attachment.attached.connection.client
        path = fold_page_keys(keys_of(tokens(10)))
        pins = [client.query(path, lock=True) for _ in range(1000)]
        assert pins[-1].status == InsertError.PINS_FULL
        assert rank.store(tokens(20)) == 0
        assert "--max-pins" in caplog.text
        assert client.mempool_used() == 10
        for found in pins:
            found.finalize()
        assert rank.store(tokens(20)) == 20
