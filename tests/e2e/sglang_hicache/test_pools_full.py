# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""KV, and the sidecars that every page needs, through SGLang's controller and host pools."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from e2e.harness import eventually
from e2e.sglang_hicache import pools
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
from e2e.sglang_hicache.pools import DRAFT, INDEXER, PAGE, SWA, Sidecar, host_group, late_entry
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolName, PoolTransfer
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool
from sglang_rig import storage_config

from radixshmem import GeometryMismatch, RadixClient
from radixshmem.integrations.sglang_hicache import RadixShmemStorage, engine, held
from radixshmem_core.server import RadixServer

Start = Callable[..., Rank]

LAYOUTS = pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])


@LAYOUTS
@pytest.mark.parametrize("kind", ["mha", "mla"])
@pytest.mark.parametrize("backend", [NATIVE, DYNAMIC])
def test_another_engine_gets_the_bytes_that_one_stored(
    cache: RadixServer, start_rank: Start, layout: str, kind: str, backend: str
) -> None:
    path = tokens(20)
    one = start_rank(layout=layout, kind=kind, backend=backend)
    other = start_rank(layout=layout, kind=kind, backend=backend)
    assert one.store(path) == 20
    assert other.fetch(path) == Fetched(20, 20, {})
    assert other.fetch(path, 7) == Fetched(13, 13, {})
    assert other.fetch(tokens(20, seed=1)) == Fetched(0, 0, {})
    assert used(cache) == 20


def test_pages_in_order_of_their_heads_come_back(cache: RadixServer, start_rank: Start) -> None:
    """A layout that SGLang has for pages with heads alone."""
    one, other = start_rank(layout="page_head"), start_rank(layout="page_head")
    assert one.store(tokens(20)) == 20
    assert other.fetch(tokens(20), 7) == Fetched(13, 13, {})


@LAYOUTS
def test_layouts_are_kept_apart(cache: RadixServer, start_rank: Start, layout: str) -> None:
    start_rank(layout=layout)
    other = "layer_first" if layout != "layer_first" else "page_first"
    with pytest.raises(RuntimeError, match=rf"(?s){layout}.*{other}|{other}.*{layout}"):
        start_rank(layout=other)


@pytest.mark.parametrize("sidecars", [(), (DRAFT,)], ids=["kv", "draft"])
def test_a_node_of_several_batches_is_stored_and_fetched(
    cache: RadixServer, start_rank: Start, sidecars: tuple[Sidecar, ...]
) -> None:
    """SGLang writes 128 pages at a time, and all of a sidecar before them."""
    path = tokens(300)
    rank = start_rank(*sidecars)
    assert rank.store(path) == 300
    assert rank.fetch(path) == Fetched(300, 300, {})
    assert rank.fetch(path, 129) == Fetched(171, 171, {})
    assert used(cache) == 300


@pytest.mark.parametrize("sidecars", [(), (DRAFT,), (SWA,)], ids=["kv", "draft", "swa"])
def test_batches_are_found_by_what_was_asked_for_before(
    cache: RadixServer, start_rank: Start, sidecars: tuple[Sidecar, ...]
) -> None:
    """With pipeline stages SGLang tells no keys before the second batch of a node at the root."""
    path = tokens(300)
    rank = start_rank(*sidecars)
    rank.store(path)
    found = rank.fetch(path, prefix=False)
    assert (found.hit_pages, found.kv_pages) == (300, 300)
    assert all(count == SWA.window_pages for count in found.pools.values())


def test_a_missing_option_is_told(
    cache: RadixServer, start_rank: Start, caplog: pytest.LogCaptureFixture
) -> None:
    rank = start_rank(backend=DYNAMIC)
    assert rank.store(tokens(10)) == 10
    assert "hicache_storage_pass_prefix_keys" not in caplog.text
    assert rank.store(tokens(10), prefix=False) == 10
    assert "hicache_storage_pass_prefix_keys" in caplog.text


def test_nodes_of_a_path_continue_each_other(cache: RadixServer, start_rank: Start) -> None:
    path = tokens(40)
    one, other = start_rank(), start_rank()
    assert one.store(path[: 16 * PAGE]) == 16
    assert one.store(path[: 30 * PAGE], 16) == 14
    assert other.store(path, 30) == 10
    assert other.fetch(path) == Fetched(40, 40, {})
    assert one.fetch(path, 20) == Fetched(20, 20, {})


def test_a_node_whose_parent_is_not_there_is_not_stored(
    cache: RadixServer, start_rank: Start, caplog: pytest.LogCaptureFixture
) -> None:
    path = tokens(20)
    rank = start_rank()
    assert rank.store(path, 8) == 0
    assert "not stored" in caplog.text
    assert used(cache) == 0
    assert rank.store(path) == 20


def test_what_is_there_takes_no_slot(cache: RadixServer, start_rank: Start) -> None:
    path = tokens(20)
    one, other = start_rank(), start_rank()
    assert one.store(path[: 12 * PAGE]) == 12
    assert other.store(path) == 20
    assert one.store(path) == 20
    assert used(cache) == 20


@pytest.mark.parametrize(
    ("kind", "sidecars"), [("mha", (DRAFT,)), ("dsa", (INDEXER,))], ids=["draft", "indexer"]
)
@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
def test_a_sidecar_is_in_the_slot_of_its_kv(
    cache: RadixServer, start_rank: Start, kind: str, sidecars: tuple[Sidecar, ...], layout: str
) -> None:
    path = tokens(20)
    one = start_rank(*sidecars, kind=kind, layout=layout)
    other = start_rank(*sidecars, kind=kind, layout=layout)
    assert one.store(path) == 20
    assert other.fetch(path, 3) == Fetched(17, 17, {})
    assert used(cache) == 20


def test_a_page_without_kv_is_whole_when_all_its_sidecars_came(cache: RadixServer) -> None:
    """An anchor pool of SGLang has no bytes of its own."""
    sidecars = host_group(DRAFT, INDEXER, kind="dsa")
    keys, host = keys_of(tokens(5)), sidecars.alloc(5 * PAGE)
    root = HiCacheStorageExtraInfo(prefix_keys=[])
    storage = RadixShmemStorage(storage_config(server_name=cache.config.name))
    storage.register_mem_pool_host(LogicalHostPool(5 * PAGE, PAGE))
    for name in (DRAFT.name, INDEXER.name):
        storage.register_mem_host_pool_v2(sidecars.get_pool(name), name)
    storage.on_host_pools_registered()
    for name in (DRAFT.name, INDEXER.name):
        assert storage.batch_set_v1(keys, host, root) == [False] * 5
        stored = storage.batch_set_v2([PoolTransfer(name, host, keys=keys)], root)
        assert stored == {name: [True] * 5}
    assert storage.batch_set_v1(keys, host, root) == [True] * 5
    assert storage.batch_exists(keys, root) == 5
    storage.close()


def test_a_sidecar_without_pages_in_place_is_refused_by_name(
    cache: RadixServer, start_rank: Start
) -> None:
    """The indexer's host pool has no zero-copy form of `layer_first`."""
    with pytest.raises(ValueError, match=r"indexer.*layer_first"):
        start_rank(INDEXER, kind="dsa", layout="layer_first")


def test_the_pool_of_a_draft_model_may_come_after_the_attach(
    cache: RadixServer, start_rank: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = SimpleNamespace(speculative_algorithm="EAGLE")
    monkeypatch.setattr(engine, "_arguments", lambda: arguments)
    rank = start_rank()
    rank.controller.register_host_pool_entry(late_entry(rank.group, DRAFT))
    rank.sidecars = (DRAFT,)
    other = start_rank(DRAFT)
    assert rank.store(tokens(20)) == 20
    assert other.fetch(tokens(20), 3) == Fetched(17, 17, {})


def test_a_pool_that_comes_unannounced_is_refused(cache: RadixServer, start_rank: Start) -> None:
    """Its pages have no place in the slots that are agreed upon by then."""
    rank = start_rank()
    with pytest.raises(GeometryMismatch, match="draft"):
        rank.controller.register_host_pool_entry(late_entry(rank.group, DRAFT))
    assert rank.store(tokens(20)) == 0
    assert used(cache) == 0


class TestDamage:
    """A page whose last bytes are not its tag: it was cut off, or never written whole."""

    @pytest.mark.parametrize("sidecars", [(), (DRAFT,)], ids=["kv", "draft"])
    def test_it_is_not_handed_out_and_the_next_store_mends_it(
        self, cache: RadixServer, start_rank: Start, sidecars: tuple[Sidecar, ...]
    ) -> None:
        path = tokens(20)
        rank = start_rank(*sidecars)
        rank.store(path)
        damage(cache, path, 7)
        assert rank.fetch(path) == Fetched(20, 7, {})
        assert rank.store(path) == 20
        assert used(cache) == 20
        assert rank.fetch(path) == Fetched(20, 20, {})

    def test_its_sidecar_is_not_handed_out_either(
        self, cache: RadixServer, start_rank: Start
    ) -> None:
        path = tokens(6)
        rank = start_rank(DRAFT)
        rank.store(path)
        damage(cache, path, 4)
        asked = PoolTransfer(DRAFT.name, rank.group.alloc(6 * PAGE), keys=keys_of(path))
        found = rank.storage.batch_get_v2([asked], HiCacheStorageExtraInfo(prefix_keys=[]))
        assert found == {DRAFT.name: [page != 4 for page in range(6)]}

    def test_a_sidecar_alone_does_not_mend_it(self, cache: RadixServer, start_rank: Start) -> None:
        path = tokens(20)
        rank = start_rank(DRAFT)
        rank.store(path)
        damage(cache, path, 7)
        assert store_sidecar(rank, DRAFT, path) == 20
        assert rank.fetch(path) == Fetched(20, 7, {})

    def test_kv_does_not_mend_it_while_a_sidecar_is_missing(
        self, cache: RadixServer, start_rank: Start
    ) -> None:
        path = tokens(6)
        rank = start_rank(DRAFT, INDEXER, kind="dsa")
        assert rank.store(path) == 6
        assert rank.fetch(path) == Fetched(6, 6, {})
        damage(cache, path, 3)
        assert store_sidecar(rank, DRAFT, path) == 6
        host = rank.group.alloc(6 * PAGE)
        stored = rank.storage.batch_set_v1(keys_of(path), host, HiCacheStorageExtraInfo([]))
        assert stored == [page != 3 for page in range(6)]
        assert rank.fetch(path) == Fetched(6, 3, {})
        assert rank.store(path) == 6
        assert rank.fetch(path) == Fetched(6, 6, {})

    @pytest.mark.parametrize("again", ["kv", "draft"])
    def test_a_slot_that_was_to_be_mended_is_not_touched_once_it_is_another_page(
        self, small: RadixServer, start_rank: Start, again: str
    ) -> None:
        rank, other = start_rank(DRAFT), start_rank(DRAFT)
        path, slots = tokens(3), total(small)
        rank.store(path)
        damage(small, path, 0)
        assert store_sidecar(rank, DRAFT, path) == 3
        with RadixClient(small.config.name) as client:
            client.reset()
        assert other.store(tokens(slots // 2, seed=1)) == slots // 2
        assert other.store(tokens(slots, seed=1), slots // 2) == slots - slots // 2
        if again == "kv":
            host = rank.group.alloc(3 * PAGE)
            extra = HiCacheStorageExtraInfo(prefix_keys=[])
            assert rank.storage.batch_set_v1(keys_of(path), host, extra) == [False] * 3
            left = slots
        else:
            assert store_sidecar(rank, DRAFT, path) == 3
            left = slots - 3
        assert other.fetch(tokens(slots, seed=1)) == Fetched(left, left, {})


class TestRanks:
    @pytest.mark.parametrize("sizes", ["tp", "pp"])
    def test_each_has_pages_of_its_own(
        self, cache: RadixServer, start_rank: Start, sizes: str
    ) -> None:
        path = tokens(20)
        ranks = [start_rank(**{sizes: (rank, 2)}) for rank in range(2)]
        assert ranks[0].store(path) == 20
        assert ranks[1].fetch(path) == Fetched(0, 0, {})
        assert ranks[1].store(path) == 20
        for rank in ranks:
            assert rank.fetch(path, 5) == Fetched(15, 15, {})
        assert used(cache) == 40

    @pytest.mark.parametrize(
        ("kind", "sidecars"), [("mla", ()), ("dsa", (INDEXER,))], ids=["mla", "indexer"]
    )
    def test_one_writes_what_all_have(
        self, cache: RadixServer, start_rank: Start, kind: str, sidecars: tuple[Sidecar, ...]
    ) -> None:
        path = tokens(20)
        ranks = [start_rank(*sidecars, kind=kind, tp=(rank, 2)) for rank in range(2)]
        assert ranks[1].store(path) == 0
        assert used(cache) == 0
        assert ranks[0].store(path) == 20
        for rank in ranks:
            assert rank.fetch(path, 5) == Fetched(15, 15, {})
        assert used(cache) == 20

    def test_a_rank_that_need_not_write_stores_the_same_page(
        self, cache: RadixServer, start_rank: Start
    ) -> None:
        """SGLang decides who writes; each would write what the others read."""
        path = tokens(20)
        ranks = [start_rank(kind="mla", tp=(rank, 2)) for rank in range(2)]
        keys = keys_of(path)
        host = ranks[1].taken(PoolName.KV, keys)
        assert all(ranks[1].storage.batch_set_v1(keys, host, HiCacheStorageExtraInfo([])))
        assert ranks[0].store(path) == 20
        for rank in ranks:
            assert rank.fetch(path) == Fetched(20, 20, {})
        assert used(cache) == 20

    def test_a_number_of_ranks_is_another_identity(
        self, cache: RadixServer, start_rank: Start
    ) -> None:
        start_rank(tp=(0, 2))
        with pytest.raises(GeometryMismatch, match="tensor"):
            start_rank(tp=(0, 4))

    def test_stages_of_unequal_pages_are_told_to_use_a_server_each(
        self, cache: RadixServer, start_rank: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start_rank(pp=(0, 2))
        monkeypatch.setattr(pools, "LAYERS", pools.LAYERS + 1)
        with pytest.raises(GeometryMismatch, match=r"(?s)client.*server.*radix-server for each st"):
            start_rank(pp=(1, 2))
        with pytest.raises(GeometryMismatch) as refused:
            start_rank()
        assert "stage" not in str(refused.value)


class TestHeldSidecars:
    """A sidecar's pages wait for the KV of the same pages."""

    def test_they_go_when_no_kv_comes(
        self, cache: RadixServer, start_rank: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(held, "HOLD_S", 0.3)
        rank = start_rank(DRAFT)
        assert store_sidecar(rank, DRAFT, tokens(20)) == 20
        assert used(cache) == 20
        eventually(lambda: used(cache) == 0, "the held slots are free")
        assert rank.store(tokens(20)) == 20
        assert rank.fetch(tokens(20)) == Fetched(20, 20, {})

    def test_they_stay_for_their_time(self, cache: RadixServer, start_rank: Start) -> None:
        rank = start_rank(DRAFT)
        waiting = rank.storage._attachment.attached.held
        store_sidecar(rank, DRAFT, tokens(5))
        for old in waiting:
            old.since -= 10
        store_sidecar(rank, DRAFT, tokens(7, seed=1))
        for each in waiting:
            each.since -= 20
        waiting._expire()
        assert used(cache) == 7, "those of 20 seconds, not those of 30"

    def test_they_take_no_more_than_half_of_the_slots(
        self, small: RadixServer, start_rank: Start
    ) -> None:
        rank, other = start_rank(DRAFT), start_rank(DRAFT)
        half = total(small) // 2
        assert store_sidecar(rank, DRAFT, tokens(60)) == half
        assert used(small) == half
        assert rank.store(tokens(5, seed=1)) == 0
        assert other.store(tokens(half, seed=1)) == half

    def test_they_go_when_another_engine_has_stored_the_page(
        self, cache: RadixServer, start_rank: Start
    ) -> None:
        path = tokens(20)
        one, other = start_rank(DRAFT), start_rank(DRAFT)
        assert store_sidecar(one, DRAFT, path) == 20
        assert other.store(path) == 20
        assert used(cache) == 40
        assert one.store(path) == 20
        assert used(cache) == 20

    def test_they_go_with_their_engine(self, cache: RadixServer, start_rank: Start) -> None:
        rank = start_rank(DRAFT)
        store_sidecar(rank, DRAFT, tokens(20))
        rank.close()
        eventually(lambda: used(cache) == 0, "the held slots are free")

    def test_kv_without_its_sidecar_is_not_stored(
        self, cache: RadixServer, start_rank: Start
    ) -> None:
        rank = start_rank(DRAFT)
        keys = keys_of(tokens(5))
        host = rank.group.alloc(5 * PAGE)
        assert rank.storage.batch_set_v1(keys, host) == [False] * 5
        assert used(cache) == 0
