# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Pools of which the last pages of a prefix are enough: sliding windows and Mamba states."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e.harness import eventually
from e2e.sglang_hicache.controllers import (
    Fetched,
    Rank,
    keys_of,
    store_sidecar,
    tokens,
    used,
    waiting,
)
from e2e.sglang_hicache.pools import MAMBA, PAGE, SWA, TRAILING, Sidecar, ends
from e2e.sglang_hicache.rank_pages import spoil
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolName

from radixshmem import ComponentType, RadixClient, fold_page_keys
from radixshmem.integrations.sglang_hicache import attached, held
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

Start = Callable[..., Rank]


@TRAILING
@pytest.mark.usefixtures("window")
def test_another_engine_gets_the_bytes_that_one_stored(
    cache: RadixServer, start_rank: Start, sidecars: tuple[Sidecar, ...]
) -> None:
    path = tokens(20)
    one, other = start_rank(*sidecars), start_rank(*sidecars)
    assert one.store(path) == 20
    assert other.fetch(path) == Fetched(20, 20, ends(sidecars))
    assert other.fetch(path, 7) == Fetched(13, 13, ends(sidecars))
    assert other.fetch(tokens(25), 7) == Fetched(13, 13, ends(sidecars))
    assert other.fetch(path[: 12 * PAGE]) == Fetched(0, 0, {}), "no node ends there"
    assert waiting(one) == 0


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_a_window_is_kept_in_each_layout(
    cache: RadixServer, start_rank: Start, layout: str
) -> None:
    rank = start_rank(SWA, layout=layout)
    rank.store(tokens(20))
    assert rank.fetch(tokens(20), 4) == Fetched(16, 16, ends((SWA,)))


def test_a_small_sidecar_takes_no_slot_of_the_size_of_kv(
    cache: RadixServer, start_rank: Start
) -> None:
    rank = start_rank(SWA, MAMBA)
    rank.store(tokens(20))
    with RadixClient(cache.config.name) as client:
        assert client.mempool_used() == 20
        assert client.geometry is not None
        pools = client.geometry["pools"]
        assert pools["swa"]["slot_bytes"] < pools["full"]["slot_bytes"]
        assert pools["mamba"]["slot_bytes"] < pools["full"]["slot_bytes"]


@TRAILING
@pytest.mark.usefixtures("window")
def test_a_node_of_several_batches_waits_with_its_sidecars_for_the_last(
    cache: RadixServer, start_rank: Start, sidecars: tuple[Sidecar, ...]
) -> None:
    """SGLang writes all last pages first, then the KV of 128 pages at a time."""
    path = tokens(300)
    rank = start_rank(*sidecars)
    everywhere = dict.fromkeys(ends(sidecars), 150) | {PoolName.MAMBA: 1}
    assert rank.store(path, trailing=everywhere) == 300
    assert rank.fetch(path) == Fetched(300, 300, ends(sidecars))
    assert rank.fetch(path, 200) == Fetched(100, 100, ends(sidecars))
    assert waiting(rank) == 0
    if PoolName.MAMBA not in ends(sidecars):
        assert rank.fetch(path[: 170 * PAGE]).kv_pages == 170, "the window is there, too"


def test_last_pages_whose_path_never_comes_go(
    cache: RadixServer, start_rank: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "HOLD_S", 0.3)
    path = tokens(20)
    rank = start_rank(SWA, MAMBA)
    assert rank.store(path, 8) == 0, "pages 0 to 7 are not there"
    assert waiting(rank) == 2
    eventually(lambda: waiting(rank) == 0, "nothing waits any more")
    assert rank.store(path[: 8 * PAGE]) == 8
    assert rank.store(path, 8) == 12
    assert rank.fetch(path) == Fetched(20, 20, ends((SWA, MAMBA)))


def test_a_damaged_last_page_is_not_handed_out_and_the_next_store_mends_it(
    cache: RadixServer, start_rank: Start
) -> None:
    rank = start_rank(MAMBA)
    path = tokens(20)
    rank.store(path)
    with RadixClient(cache.config.name) as client:
        found = client.query_aux(fold_page_keys(keys_of(path)), ComponentType.MAMBA, 19)
        spoil(client, int(found.slots[0]), ComponentType.MAMBA)
    assert rank.fetch(path) == Fetched(20, 20, {PoolName.MAMBA: 0})
    assert rank.store(path) == 20
    assert rank.fetch(path) == Fetched(20, 20, {PoolName.MAMBA: 1})


@pytest.mark.parametrize("more", [0, 1])
def test_kv_is_stored_when_there_is_no_room_for_its_last_pages(
    region_name: str, start_rank: Start, more: int
) -> None:
    """No more than half of the slots wait for their path."""
    config = ServerConfig(region_name, data_bytes="256K", slot_align=64, swa_ratio=0.1)
    with RadixServer(config) as small:
        rank = start_rank(SWA)
        with RadixClient(region_name) as client:
            half = client.swa_mempool_total() // 2
        path = tokens(20)
        assert store_sidecar(rank, SWA, tokens(half + 1, seed=1)) == 0
        assert rank.store(path, trailing={PoolName.SWA: half + more}) == 20
        assert used(small) == 20
        assert rank.fetch(path).kv_pages == (0 if more else 20)
        assert waiting(rank) == 0
        assert rank.store(path) == 20
        assert rank.fetch(path) == Fetched(20, 20, ends((SWA,)))


def test_one_state_may_wait_in_a_pool_of_one_slot(region_name: str, start_rank: Start) -> None:
    config = ServerConfig(region_name, data_bytes="256K", slot_align=64, mamba_ratio=0.001)
    with RadixServer(config):
        rank = start_rank(MAMBA)
        with RadixClient(region_name) as client:
            assert client.store is not None
            assert client.store.pool(ComponentType.MAMBA).num_slots == 1
        assert rank.store(tokens(4)) == 4
        assert rank.fetch(tokens(4)) == Fetched(4, 4, ends((MAMBA,)))


def test_last_pages_that_come_again_take_the_place_of_those_that_wait(
    region_name: str, start_rank: Start
) -> None:
    config = ServerConfig(region_name, data_bytes="256K", slot_align=64, swa_ratio=0.2)
    with RadixServer(config):
        rank = start_rank(SWA)
        for seed in range(5):
            path = tokens(20, seed)
            for _ in range(2):
                assert rank.store(path, 8) == 0, "pages 0 to 7 are not there"
                assert waiting(rank) == 1
            assert rank.store(path) == 20
            assert rank.fetch(path) == Fetched(20, 20, ends((SWA,)))
        with RadixClient(region_name) as client:
            client.reset()
            slots = client.swa_mempool_total()
            assert len(client.allocate_slots(slots, ComponentType.SWA)) == slots, "none is lost"


def test_last_pages_of_a_path_that_is_there_wait_for_nothing(
    cache: RadixServer, start_rank: Start
) -> None:
    rank = start_rank(MAMBA)
    path = tokens(20)
    rank.store(path, trailing={})
    assert rank.fetch(path).hit_pages == 0
    assert store_sidecar(rank, MAMBA, path, last=1) == 1
    assert waiting(rank) == 0
    assert rank.fetch(path).hit_pages == 20


def test_last_pages_inside_of_a_later_node_find_their_place(
    cache: RadixServer, start_rank: Start
) -> None:
    rank = start_rank(SWA, MAMBA)
    assert rank.store(tokens(20), 8) == 0, "pages 0 to 7 are not there"
    assert rank.store(tokens(30), trailing={}) == 30
    assert waiting(rank) == 0
    assert rank.fetch(tokens(20), 2) == Fetched(18, 18, ends((SWA, MAMBA)))
    assert rank.fetch(tokens(30)) == Fetched(20, 20, ends((SWA, MAMBA)))


class TestOlderVersions:
    def test_batches_at_the_root_are_placed_by_what_was_asked_for(
        self, cache: RadixServer, start_rank: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As SGLang 0.5.20 does: where nothing is before a node, nor is it before its batches."""
        rank = start_rank()
        nothing = HiCacheStorageExtraInfo(prefix_keys=[])
        for name in ("batch_get_v1", "batch_set_v1"):
            call = getattr(rank.storage, name)
            monkeypatch.setattr(
                rank.storage, name, lambda keys, host, _, call=call: call(keys, host, nothing)
            )
        path = tokens(300)
        assert rank.fetch(path) == Fetched(0, 0, {}), "SGLang asks before it computes"
        assert rank.store(path) == 300
        assert rank.fetch(path) == Fetched(300, 300, {})
        assert used(cache) == 300

    @TRAILING
    def test_sidecars_without_their_prefix_are_placed_by_the_kv(
        self,
        cache: RadixServer,
        start_rank: Start,
        monkeypatch: pytest.MonkeyPatch,
        sidecars: tuple[Sidecar, ...],
    ) -> None:
        """As SGLang 0.5.20 does: only for KV, and for the question, it tells the keys before."""
        path = tokens(20)
        one, other = start_rank(*sidecars), start_rank(*sidecars)
        for rank in (one, other):
            for name in ("batch_get_v2", "batch_set_v2"):
                call = getattr(rank.storage, name)
                monkeypatch.setattr(
                    rank.storage, name, lambda transfers, extra_info, call=call: call(transfers)
                )
        assert one.store(path[: 8 * PAGE]) == 8
        assert one.store(path, 8) == 12
        assert other.fetch(path) == Fetched(20, 20, ends(sidecars))
        assert other.fetch(path, 8) == Fetched(12, 12, ends(sidecars))
        assert one.store(path, 8) == 12
        assert waiting(one) == 0
        assert used(cache) == 20

    def test_without_the_last_call_of_the_attach_the_first_batch_opens(
        self, cache: RadixServer, start_rank: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before 0.5.23 SGLang does not say that all host pools are named."""
        kind = type(start_rank(SWA).storage)
        monkeypatch.setattr(kind, "on_host_pools_registered", lambda self: None)
        rank = start_rank(SWA)
        assert rank.storage._attachment.attached is None
        assert rank.store(tokens(20)) == 20
        assert rank.fetch(tokens(20)) == Fetched(20, 20, ends((SWA,)))

    def test_an_error_that_nobody_expects_is_told_once_and_a_miss(
        self,
        cache: RadixServer,
        start_rank: Start,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Raised at a batch, it would end SGLang's thread."""
        kind = type(start_rank().storage)
        monkeypatch.setattr(kind, "on_host_pools_registered", lambda self: None)
        rank = start_rank()
        monkeypatch.setattr(attached, "page_parts", lambda *_, **__: {}["of a pool"])
        for _ in range(2):
            assert rank.storage.batch_exists(keys_of(tokens(2))) == 0
        (told,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert "nothing is restored or stored: 'of a pool'" in told.getMessage()
        assert told.exc_info

    def test_pools_without_a_place_are_told_once_and_are_misses(
        self,
        cache: RadixServer,
        start_rank: Start,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        kind = type(start_rank(SWA).storage)
        monkeypatch.setattr(kind, "on_host_pools_registered", lambda self: None)
        rank = start_rank(SWA, Sidecar(PoolName.AUXILIARY_SWA, 3))
        caplog.clear()
        for _ in range(3):
            assert rank.store(tokens(20)) == 0
            assert rank.fetch(tokens(20)) == Fetched(0, 0, {})
        told = [record for record in caplog.records if record.name == "radixshmem.sglang"]
        assert len(told) == 1
        assert "auxiliary_swa" in told[0].getMessage()
