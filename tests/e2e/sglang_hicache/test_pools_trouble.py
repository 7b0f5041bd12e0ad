# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Host pools that have no place, stores that are full or away, and several threads at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import DEADLINE_S, ServerProcess, eventually
from e2e.sglang_hicache.controllers import (
    DYNAMIC,
    NATIVE,
    Fetched,
    Rank,
    damage,
    keys_of,
    store_sidecar,
    tokens,
    total,
    used,
)
from e2e.sglang_hicache.pools import (
    DRAFT,
    DRAFT_SWA,
    MAMBA,
    PAGE,
    SWA,
    Sidecar,
    fill,
    holds,
)
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)

from radixshmem import RadixClient, RadixError, fold_page_keys
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

Start = Callable[..., Rank]


class TestRefused:
    """SGLang fails the attach with these words, and is as before."""

    @pytest.mark.parametrize("backend", [NATIVE, DYNAMIC])
    @pytest.mark.parametrize(
        ("sidecars", "options", "words"),
        [
            ((SWA, DRAFT_SWA), {}, "draft_swa"),
            ((Sidecar(PoolName.AUXILIARY_SWA, 3),), {}, "auxiliary_swa"),
            ((MAMBA,), {"kind": "mla", "tp": (1, 2)}, "mamba.*rank"),
            ((DRAFT,), {"kind": "mla", "tp": (0, 2)}, "draft.*rank"),
            ((SWA,), {"kind": "mla", "tp": (0, 2)}, "swa.*rank"),
        ],
        ids=["second-swa", "auxiliary-swa", "mla-mamba", "mla-draft", "mla-swa"],
    )
    def test_a_pool_without_a_place_is_named(
        self,
        cache: RadixServer,
        start_rank: Start,
        backend: str,
        sidecars: tuple[Sidecar, ...],
        options: dict[str, Any],
        words: str,
    ) -> None:
        with pytest.raises(ValueError, match=words):
            start_rank(*sidecars, backend=backend, **options)

    def test_the_rank_can_attach_another_backend_afterwards(
        self, cache: RadixServer, start_rank: Start, region_name: str
    ) -> None:
        rank = start_rank()
        rank.close()
        with pytest.raises(ValueError, match="server_nam"):
            rank.attach(NATIVE, {"server_nam": region_name})
        assert rank.controller.storage_backend_type is None
        rank.attach(NATIVE, {"server_name": region_name})
        assert rank.store(tokens(5)) == 5

    def test_half_attached_is_undone(
        self, cache: RadixServer, start_rank: Start, region_name: str
    ) -> None:
        """SGLang itself registers the pools only after its threads run."""
        rank = start_rank(layout="layer_first")
        rank.close()
        other = start_rank(DRAFT, attach=False)
        with pytest.raises(RuntimeError, match="draft"):
            other.attach(NATIVE, {"server_name": region_name})
        assert not other.controller.enable_storage
        assert other.controller.storage_backend is None

    def test_groups_of_blocks_restore_nothing(
        self, cache: RadixServer, start_rank: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        rank = start_rank(DRAFT)
        rank.store(tokens(10))
        keys = keys_of(tokens(10))
        grouped = PoolTransfer(PoolName.DRAFT, keys=keys, hit_policy=PoolHitPolicy.BLOCK_GROUPS)
        found = rank.storage.batch_exists_v2(keys, [grouped], HiCacheStorageExtraInfo())
        assert found.kv_hit_pages == 0
        assert found.restorable_prefix_pages == []
        assert "draft" in caplog.text

    def test_a_pool_that_was_never_registered_restores_nothing(
        self, cache: RadixServer, start_rank: Start
    ) -> None:
        rank = start_rank()
        rank.store(tokens(10))
        keys = keys_of(tokens(10))
        extra = HiCacheStorageExtraInfo()
        unknown = PoolTransfer(PoolName.DRAFT, keys=keys, host_indices=rank.group.alloc(10 * PAGE))
        assert rank.storage.batch_exists_v2(keys, [unknown], extra).kv_hit_pages == 0
        assert rank.storage.batch_get_v2([unknown], extra) == {"draft": [False] * 10}
        assert rank.storage.batch_set_v2([unknown], extra) == {"draft": [False] * 10}


class TestFull:
    """A server of few slots."""

    def test_a_new_path_takes_the_place_of_an_old_one(
        self, small: RadixServer, start_rank: Start
    ) -> None:
        rank = start_rank()
        slots = total(small)
        for seed in range(4):
            assert rank.store(tokens(slots - 3, seed)) == slots - 3
        assert rank.fetch(tokens(slots - 3, seed=3)).kv_pages == slots - 3
        assert rank.fetch(tokens(slots - 3, seed=0)).hit_pages <= 3

    def test_of_a_longer_path_the_begin_stays(self, small: RadixServer, start_rank: Start) -> None:
        rank = start_rank()
        slots = total(small)
        path = tokens(slots + 20)
        assert rank.store(path) == 0, "SGLang counts whole batches"
        assert rank.fetch(path) == Fetched(slots, slots, {})
        assert rank.store(path, slots) == 0
        assert rank.fetch(path) == Fetched(slots, slots, {})

    def test_pages_of_a_sidecar_do_not_stay_behind(
        self, small: RadixServer, start_rank: Start
    ) -> None:
        rank = start_rank(DRAFT)
        slots = total(small)
        rank.store(tokens(slots + 20))
        half = slots // 2
        assert rank.fetch(tokens(slots + 20)).kv_pages == half
        assert used(small) == half
        for seed in range(1, 4):
            assert rank.store(tokens(half, seed)) == half
            assert rank.fetch(tokens(half, seed)) == Fetched(half, half, {})

    def test_a_key_that_comes_twice_takes_one_slot(
        self, small: RadixServer, start_rank: Start
    ) -> None:
        rank = start_rank(DRAFT)
        twice, host = keys_of(tokens(1)) * 5, rank.group.alloc(5 * PAGE)
        for _ in range(2):
            sidecar = PoolTransfer(DRAFT.name, host, keys=twice)
            rank.storage.batch_set_v2([sidecar], HiCacheStorageExtraInfo([]))
            rank.storage.batch_set_v1(twice, host, HiCacheStorageExtraInfo([]))
        with RadixClient(small.config.name) as client:
            assert client.mempool_used() == client.total_blocks() == 1

    def test_pages_that_cannot_be_pinned_are_told(
        self, region_name: str, start_rank: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        config = ServerConfig(
            region_name, data_bytes="256K", slot_align=64, mamba_ratio=0.1, max_pins=16
        )
        with RadixServer(config):
            rank = start_rank(MAMBA)
            assert rank.store(tokens(5)) == 5
            keys, storage = keys_of(tokens(5)), rank.storage
            root, before = (HiCacheStorageExtraInfo(prefix) for prefix in ([], keys[:-1]))
            host, state_host = rank.group.alloc(5 * PAGE), rank.taken(MAMBA.name, keys[-1:])
            state = PoolTransfer(MAMBA.name, state_host, keys=keys[-1:])
            client = storage._attachment.attached.connection.client
            pins = [client.query(fold_page_keys(keys), lock=True) for _ in range(16)]
            caplog.clear()
            assert storage.batch_get_v1(keys, host, root) == [False] * 5
            assert storage.batch_get_v2([state], before) == {MAMBA.name: [False]}
            assert storage.batch_set_v2([state], before) == {MAMBA.name: [False]}
            for pin in pins:
                pin.finalize()
            assert storage.batch_get_v2([state], before) == {MAMBA.name: [True]}
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 2, "of reading, and of storing"
        assert all("PINS_FULL, start the radix-server with more --max-pins" in x for x in told)


class TestAway:
    def test_before_the_server_is_there_nothing_is_found_or_stored(
        self, region_name: str, start_rank: Start
    ) -> None:
        rank = start_rank()
        assert rank.store(tokens(10)) == 0
        assert rank.fetch(tokens(10)) == Fetched(0, 0, {})
        with RadixServer(ServerConfig(region_name, data_bytes="1M")):
            eventually(lambda: rank.store(tokens(10)) == 10, "attached to the late server")
            assert rank.fetch(tokens(10)) == Fetched(10, 10, {})

    def test_one_that_stands_still_at_the_attach_is_attached_when_it_goes_on(
        self, region_name: str, start_rank: Start, start_server: Callable[..., ServerProcess]
    ) -> None:
        server = start_server()
        server.event("waiting")
        server.signal(signal.SIGSTOP)
        rank = start_rank()
        assert rank.fetch(tokens(10)) == Fetched(0, 0, {})
        assert rank.store(tokens(10)) == 0
        server.signal(signal.SIGCONT)
        eventually(lambda: rank.store(tokens(10)) == 10, "attached")
        assert rank.fetch(tokens(10)) == Fetched(10, 10, {})
        server.stop()

    def test_closed_and_started_again_it_is_empty(
        self, region_name: str, start_rank: Start
    ) -> None:
        """Each thread of SGLang goes on to the new server by itself, whatever it does first."""
        config = ServerConfig(region_name, data_bytes="1M")
        path = tokens(10)
        with RadixServer(config):
            rank = start_rank(DRAFT)
            assert rank.store(path) == 10
            assert rank.fetch(path) == Fetched(10, 10, {})
        assert rank.fetch(path) == Fetched(0, 0, {})
        assert rank.store(path) == 0
        with RadixServer(config):
            eventually(lambda: store_sidecar(rank, DRAFT, tokens(1, seed=1)), "attached again")
            assert rank.fetch(path) == Fetched(0, 0, {})
            assert rank.store(path) == 10
            assert rank.fetch(path) == Fetched(10, 10, {})

    def test_the_new_server_can_be_cleared(self, region_name: str, start_rank: Start) -> None:
        config = ServerConfig(region_name, data_bytes="1M")
        with RadixServer(config):
            rank = start_rank()
            rank.store(tokens(10))
        with pytest.raises(RadixError):
            rank.controller.clear_storage_backend()
        with RadixServer(config) as later:
            eventually(lambda: rank.store(tokens(10)) == 10, "attached again")
            assert rank.controller.clear_storage_backend()
            assert used(later) == 0

    def test_one_that_stands_still_is_not_cleared_and_does_not_hold_sglang(
        self, start_rank: Start, start_server: Callable[..., ServerProcess]
    ) -> None:
        server = start_server()
        server.event("waiting")
        rank = start_rank()
        assert rank.store(tokens(10)) == 10
        server.signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError, match="did not answer within 5 s: is it stopped"):
            rank.controller.clear_storage_backend()
        server.signal(signal.SIGCONT)
        assert rank.fetch(tokens(10)) == Fetched(10, 10, {})
        assert rank.controller.clear_storage_backend()
        assert rank.fetch(tokens(10)) == Fetched(0, 0, {})
        server.stop()

    def test_killed_it_goes_on_by_what_it_left(
        self, region_name: str, start_rank: Start, start_server: Callable[..., ServerProcess]
    ) -> None:
        server = start_server()
        server.event("waiting")
        rank = start_rank()
        rank.store(tokens(10))
        server.kill()
        assert rank.fetch(tokens(10)) == Fetched(10, 10, {})
        assert rank.store(tokens(10, seed=1)) == 10
        assert rank.fetch(tokens(10, seed=1), 4) == Fetched(6, 6, {})
        successor = start_server()
        successor.event("adopted")
        assert rank.fetch(tokens(10)) == Fetched(10, 10, {})
        assert rank.store(tokens(10, seed=2)) == 10
        successor.stop()
        assert rank.fetch(tokens(10)) == Fetched(0, 0, {})

    def test_superseded_it_leaves_misses_until_the_next_one_is_attached(
        self, region_name: str, start_rank: Start, start_server: Callable[..., ServerProcess]
    ) -> None:
        """A server that cannot adopt what a killed one left starts empty."""
        server = start_server()
        server.event("waiting")
        rank = start_rank()
        path = tokens(10)
        assert rank.store(path) == 10
        server.kill()
        Path(f"/dev/shm{region_name}_data").unlink()
        successor = start_server()
        successor.event("waiting")
        assert rank.storage.batch_exists(keys_of(path), HiCacheStorageExtraInfo([])) == 0
        assert rank.fetch(path) == Fetched(0, 0, {})
        eventually(lambda: rank.store(path) == 10, "attached to the next server")
        assert rank.fetch(path) == Fetched(10, 10, {})
        successor.stop()

    def test_slots_that_waited_are_void_in_the_next_server(
        self, region_name: str, start_rank: Start
    ) -> None:
        """None of them is written to, or given back, where it belongs to somebody else."""
        config = ServerConfig(region_name, data_bytes="1M")
        rank = None
        with RadixServer(config):
            rank = start_rank(DRAFT)
            keys = keys_of(tokens(10))
            host = rank.group.alloc(10 * PAGE)
            sidecar = PoolTransfer(PoolName.DRAFT, keys=keys, host_indices=host)
            rank.storage.batch_set_v2([sidecar], HiCacheStorageExtraInfo())
        with RadixServer(config) as later:
            other = start_rank(DRAFT)
            other.store(tokens(10, seed=1))
            eventually(
                lambda: rank.storage.batch_set_v1(keys, host) != [] and _attached(rank, later),
                "attached to the new server",
            )
            assert rank.storage.batch_set_v1(keys, host) == [False] * 10
            assert other.fetch(tokens(10, seed=1)) == Fetched(10, 10, {})
            assert used(later) == 10


def _attached(rank: Rank, server: RadixServer) -> bool:
    return bool(rank.storage.batch_exists(keys_of(tokens(10, seed=1))) == 10)


def test_what_is_not_as_agreed_is_a_miss_that_is_told(
    cache: RadixServer, start_rank: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """After the attach no call raises: that would end SGLang's thread."""
    rank = start_rank()
    keys = keys_of(tokens(5))
    few = rank.group.alloc(4 * PAGE)
    extra = HiCacheStorageExtraInfo()
    assert rank.storage.batch_set_v1(keys, few, extra) == [False] * 5
    assert rank.storage.batch_get_v1(["no hex"] * 4, few, extra) == [False] * 4
    assert rank.storage.batch_exists(["no hex"], extra) == 0
    assert rank.storage.batch_exists([], extra) == 0
    assert "5 pages" in caplog.text
    assert "no hex" in caplog.text


def test_the_same_trouble_is_told_once_however_often_it_comes(
    cache: RadixServer, start_rank: Start, caplog: pytest.LogCaptureFixture
) -> None:
    rank, path = start_rank(), tokens(5)
    assert rank.store(path) == 5
    for page in range(3):
        damage(cache, path, page)
    host, root = rank.group.alloc(5 * PAGE), HiCacheStorageExtraInfo([])
    caplog.clear()
    for turn in range(2, 5):
        keys = keys_of(path)[:turn]
        assert rank.storage.batch_get_v1(keys, host[: turn * PAGE], root)[0] is False
        assert rank.storage.batch_exists([f"no key {turn}"], root) == 0
    damaged, no_key = (record.getMessage() for record in caplog.records)
    assert "tag of another one" in damaged
    assert "no key 2" in no_key


def test_clear_drops_everything(cache: RadixServer, start_rank: Start) -> None:
    rank, other = start_rank(), start_rank()
    rank.store(tokens(10))
    assert rank.controller.clear_storage_backend()
    assert other.fetch(tokens(10)) == Fetched(0, 0, {})
    assert used(cache) == 0
    assert other.store(tokens(10)) == 10


def test_detach_leaves_nothing_behind(cache: RadixServer, start_rank: Start) -> None:
    start_rank(DRAFT).store(tokens(10))  # leaves the thread that all clients share
    before = set(threading.enumerate())
    rank = start_rank(DRAFT)
    rank.store(tokens(10))
    rank.close()
    assert used(cache) == 10
    eventually(lambda: set(threading.enumerate()) <= before, "the threads have ended")


def test_several_threads_at_once(
    cache: RadixServer, start_rank: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """SGLang asks, fetches and stores from a thread each, of two engines here."""
    ranks = [start_rank(DRAFT), start_rank(DRAFT)]
    paths = [tokens(12, seed) for seed in range(6)]
    failures: list[str] = []
    workers = [
        threading.Thread(target=_hammer, args=(rank, paths, order, failures))
        for rank in ranks
        for order in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE_S)
    assert not failures
    assert "radixshmem" not in caplog.text
    for path in paths:
        assert ranks[0].store(path) == 12
        assert ranks[1].fetch(path) == Fetched(12, 12, {})
    assert used(cache) == 6 * 12


def _hammer(rank: Rank, paths: list[list[int]], order: int, failures: list[str]) -> None:
    """Store, ask and fetch by the calls of the storage, on host pages of this thread's own."""
    with rank.guard:
        host = rank.group.alloc(12 * PAGE)
    kv, draft = (rank.group.get_pool(name) for name in (PoolName.KV, PoolName.DRAFT))
    extra = HiCacheStorageExtraInfo(prefix_keys=[])
    for turn in range(30):
        path = paths[(turn * (order + 1)) % len(paths)]
        keys = keys_of(path)
        if (turn + order) % 2:
            for key, index in zip(keys, host[::PAGE].tolist(), strict=True):
                fill(kv, index, key)
                fill(draft, index, key)
            rank.storage.batch_set_v2([PoolTransfer(PoolName.DRAFT, host, keys=keys)], extra)
            rank.storage.batch_set_v1(keys, host, extra)
        else:
            there = rank.storage.batch_exists(keys, extra)
            ok = rank.storage.batch_get_v1(keys, host, extra)
            sidecar = PoolTransfer(PoolName.DRAFT, host, keys=keys)
            also = rank.storage.batch_get_v2([sidecar], extra)["draft"]
            if ok[:there] != [True] * there:
                failures.append(f"{there} pages were there, then {ok}")
            for key, index, whole, beside in zip(
                keys, host[::PAGE].tolist(), ok, also, strict=True
            ):
                if whole and not holds(kv, index, key):
                    failures.append(f"a wrong page of {key}")
                if beside and not holds(draft, index, key):
                    failures.append(f"a wrong sidecar of {key}")
