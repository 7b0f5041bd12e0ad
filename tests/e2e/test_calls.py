# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The calls of a client against a real server: values, forms of arguments, documented results."""

from __future__ import annotations

import array
import enum
import math
import threading

import numpy as np
import pytest
from e2e.harness import GEOMETRY, path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import RadixError
from radixshmem_core.server import RadixServer
from radixshmem_core.values import (
    COMPONENT_MASK_FULL,
    COMPONENT_MASK_MAMBA,
    COMPONENT_MASK_SWA,
    ComponentType,
    Geometry,
    InsertError,
)

WINDOW = 4
HYBRID = Geometry(
    16,
    4000,
    swa_slot_bytes=1000,
    swa_window_blocks=WINDOW,
    mamba_slot_bytes=2000,
    slot_align=1024,
)


@pytest.fixture
def client(server: RadixServer) -> RadixClient:
    with RadixClient(server.name, GEOMETRY) as attached:
        yield attached


@pytest.fixture
def hybrid(region_name: str) -> RadixClient:
    config = ServerConfig(region_name, data_bytes="1M", swa_ratio=0.1, mamba_ratio=0.1)
    with RadixServer(config), RadixClient(region_name, HYBRID) as attached:
        yield attached


def test_results_print_what_happened(client: RadixClient) -> None:
    hashes = path_hashes(3)
    landed = client.insert(hashes, client.allocate_slots(3))
    assert repr(landed) == "InsertResult(error=OK, landed=(0, 3), len(unused_slots)=0)"
    refused = client.insert(hashes, [0, 0])
    assert repr(refused).startswith("InsertResult(error=BAD_REQUEST, ")
    hit = client.query(hashes, lock=True)
    assert repr(hit) == "QueryResult(status=OK, common_hit=3, pinned=True)"
    hit.finalize()
    assert repr(hit) == "QueryResult(status=OK, common_hit=3, pinned=False)"


def test_insert_then_query(client: RadixClient) -> None:
    hashes = path_hashes(8)
    slots = client.allocate_slots(6)
    assert slots.dtype == np.int32
    result = client.insert(hashes[:6], slots)
    assert (result.error, result.landed, result.unused_slots.tolist()) == (0, (0, 6), [])
    hit = client.query(hashes)
    assert (hit.status, hit.common_hit) == (InsertError.OK, 6)
    assert hit.full_slots.tolist() == slots.tolist()
    assert hit.full_fragments == [(0, 0, slots.tolist())]
    assert (hit.swa_start, hit.swa_slots.tolist(), hit.mamba) == (0, [], None)
    assert hit.validate()
    assert client.index.query(hashes).common_hit == 6
    assert client.query(path_hashes(3, seed=1)).full_fragments == []


def test_figures_of_the_pool(client: RadixClient) -> None:
    assert (client.mempool_total(), client.mempool_used(), client.mempool_free()) == (256, 0, 256)
    assert (client.swa_mempool_total(), client.total_blocks(), client.total_radix_nodes()) == (
        0,
        0,
        0,
    )
    client.insert(path_hashes(70), client.allocate_slots(70))
    client.allocate_slots(3)
    assert (client.mempool_used(), client.total_blocks()) == (73, 70)
    assert client.total_radix_nodes() > 0
    assert (client.is_distributed(), client.rank(), client.world_size()) == (False, 0, 1)
    assert client.block_size() == 16
    assert (client.transfer_failures, client.staging_shortfalls) == (0, 0)
    assert (client.promotion_shortfalls, client.saturated) == (0, 0)
    assert client.flush() is True
    assert client.flush(0) is True


def test_a_call_may_wait_for_ever(client: RadixClient) -> None:
    assert client.wait_ready(math.inf).mode == "ready"
    assert client.pull_async(path_hashes(2), timeout_ms=10**400).wait(math.inf).common_hit == 0


@pytest.mark.parametrize(
    "form",
    [
        lambda hashes: hashes.view(np.int64),
        lambda hashes: hashes.tolist(),
        lambda hashes: tuple(hashes.tolist()),
        lambda hashes: array.array("Q", hashes.tolist()),
        lambda hashes: memoryview(hashes),
        lambda hashes: np.repeat(hashes, 2)[::2],
        lambda hashes: hashes.astype(">u8"),
    ],
    ids=["int64", "list", "tuple", "array", "memoryview", "strided", "byte order"],
)
def test_forms_of_hashes(client: RadixClient, form: object) -> None:
    hashes = path_hashes(5)
    client.insert(form(hashes), client.allocate_slots(5).tolist())  # type: ignore[operator]
    assert client.query(form(hashes)).common_hit == 5  # type: ignore[operator]


@pytest.mark.parametrize("dtype", ["i4", "i8", ">i4", ">i8"])
def test_forms_of_slots(client: RadixClient, dtype: str) -> None:
    hashes = path_hashes(5)
    slots = client.allocate_slots(5).astype(dtype)
    assert client.insert(hashes, slots).error == InsertError.OK
    more = client.allocate_slots(2)
    client.recycle_slots(more.astype(dtype))


@pytest.mark.parametrize(
    "hashes", [np.arange(3, dtype=np.int32), np.zeros((2, 2), np.uint64), [1.5], "abc", None]
)
def test_wrong_hashes_are_value_errors(client: RadixClient, hashes: object) -> None:
    with pytest.raises(ValueError, match="hashes"):
        client.query(hashes)
    with pytest.raises(ValueError, match="hashes"):
        client.insert(hashes, [])


def test_components_of_any_int_convertible_enum(hybrid: RadixClient) -> None:
    class Kind(enum.IntEnum):
        FULL = 0
        SWA = 1

    class Plain(enum.Enum):
        SWA = 1
        MASK = 3

    hashes = path_hashes(4)
    hybrid.insert(hashes, hybrid.allocate_slots(4, Kind.FULL))
    slots = hybrid.allocate_slots(4, Plain.SWA)  # type: ignore[arg-type]
    assert hybrid.insert(hashes, slots, component=Kind.SWA).error == InsertError.OK
    assert hybrid.query(hashes, Plain.MASK).common_hit == 4  # type: ignore[arg-type]
    assert len(hybrid.slot_view(0, Kind.SWA)) == 1024


def test_empty_arguments(client: RadixClient) -> None:
    assert client.allocate_slots(0).tolist() == []
    assert client.query([]).common_hit == 0
    assert client.insert([], []).error == InsertError.OK
    client.recycle_slots([])


def test_insert_rules_of_full(client: RadixClient) -> None:
    hashes = path_hashes(10)
    client.insert(hashes[:4], client.allocate_slots(4))
    slots = client.allocate_slots(6)
    overlapping = client.insert(hashes[:8], slots, 2)  # 2 and 3 are there already
    assert (overlapping.error, overlapping.landed) == (InsertError.OK, (4, 8))
    assert overlapping.unused_slots.tolist() == slots[:2].tolist()
    assert client.mempool_used() == 8  # unused slots were recycled
    mine = client.allocate_slots(1)
    gap = client.insert(path_hashes(3, seed=9), mine, 2, False)
    assert gap.error == InsertError.FULL_PATH_MISSING
    assert gap.landed[0] == gap.landed[1]
    assert gap.unused_slots.tolist() == mine.tolist()
    client.insert(path_hashes(1, seed=8), mine)  # without auto_recycle it was still ours
    assert client.query(path_hashes(1, seed=8)).common_hit == 1


def test_query_refusals_do_not_raise(client: RadixClient) -> None:
    hit = client.query(path_hashes(3), COMPONENT_MASK_SWA)
    assert (hit.status, hit.common_hit) == (InsertError.BAD_REQUEST, 0)
    assert hit.finalize
    hit.finalize()


def test_batches(client: RadixClient) -> None:
    paths = [path_hashes(5, seed=n) for n in range(3)]
    items = [(path, client.allocate_slots(5), 0) for path in paths]
    assert [result.landed for result in client.insert_many(items)] == [(0, 5)] * 3
    hits = client.query_many([*paths, path_hashes(2, seed=7)], COMPONENT_MASK_FULL, lock=True)
    assert [hit.common_hit for hit in hits] == [5, 5, 5, 0]
    for hit in hits:
        hit.finalize()


def test_extend_goes_on_from_a_match(client: RadixClient) -> None:
    hashes = path_hashes(100)
    client.insert(hashes, client.allocate_slots(100))
    first = client.query(hashes[:30])
    assert first.cursor is not None
    assert first.cursor.position == 30
    more = client.extend(first.cursor, hashes[30:])
    assert (more.status, more.common_hit) == (InsertError.OK, 70)
    client.reset()
    stale = client.extend(first.cursor, hashes[30:])
    assert (stale.status, stale.common_hit) == (InsertError.CURSOR_STALE, 0)


def test_windows(hybrid: RadixClient) -> None:
    hashes = path_hashes(10)
    hybrid.insert(hashes, hybrid.allocate_slots(10))
    both = COMPONENT_MASK_FULL | COMPONENT_MASK_SWA
    assert hybrid.query(hashes, both).common_hit == 0  # no complete window anywhere
    window = hybrid.allocate_slots(WINDOW, ComponentType.SWA)
    assert hybrid.insert(hashes[:8], window, component=ComponentType.SWA).error == 0
    hit = hybrid.query(hashes, both, lock=True)
    assert (hit.common_hit, hit.swa_start, hit.swa_slots.tolist()) == (8, 4, window.tolist())
    assert hit.swa_source_rank == 0
    hit.finalize()
    checkpoint = hybrid.allocate_slots(1, ComponentType.MAMBA)
    assert hybrid.insert(hashes[:6], checkpoint, component=ComponentType.MAMBA).error == 0
    hit = hybrid.query(hashes, COMPONENT_MASK_FULL | COMPONENT_MASK_MAMBA)
    assert (hit.common_hit, hit.mamba) == (6, (0, int(checkpoint[0])))
    assert hybrid.query(hashes, COMPONENT_MASK_SWA).common_hit == 8


def test_slots_hold_bytes(client: RadixClient) -> None:
    slot = int(client.allocate_slots(1)[0])
    view = client.slot_view(slot)
    assert (view.format, view.ndim, len(view), view.readonly) == ("B", 1, 4096, False)
    view[:5] = b"hello"
    assert client.store is not None
    assert client.store.read_slot(slot)[:6] == b"hello\0"
    with pytest.raises(IndexError, match="slot 256"):
        client.slot_view(256)


def test_allocation_errors(client: RadixClient) -> None:
    with pytest.raises(ValueError, match="257"):
        client.allocate_slots(257)
    with pytest.raises(ValueError, match="SWA"):
        client.allocate_slots(1, ComponentType.SWA)
    with pytest.raises(ValueError, match="-1"):
        client.allocate_slots(-1)


def test_allocation_evicts_and_comes_back_short_only_when_it_must(client: RadixClient) -> None:
    hashes = path_hashes(200)
    client.insert(hashes, client.allocate_slots(200))
    held = client.allocate_slots(100)
    assert len(held) == 100  # 44 blocks were evicted from the tail
    assert client.query(hashes).common_hit <= 156
    pinned = client.query(hashes, lock=True)
    rest = client.allocate_slots(256)
    assert len(rest) == 256 - 100 - pinned.common_hit
    pinned.finalize()
    assert client.allocate_slots(1).tolist() != []


def test_allocation_takes_what_was_just_used_when_the_rest_is_pinned(client: RadixClient) -> None:
    pinned, used = path_hashes(200, seed=1), path_hashes(56, seed=2)
    client.insert(pinned, client.allocate_slots(200))
    hit = client.query(pinned, lock=True)
    client.insert(used, client.allocate_slots(56))
    client.query(used)
    assert len(client.allocate_slots(100)) == 56  # short, but all there was
    hit.finalize()


def test_window_slots_are_evicted_even_when_just_used(hybrid: RadixClient) -> None:
    both = COMPONENT_MASK_FULL | COMPONENT_MASK_SWA
    total = hybrid.swa_mempool_total()
    paths = [path_hashes(WINDOW, seed=seed) for seed in range(total // WINDOW)]
    for path in paths:
        hybrid.insert(path, hybrid.allocate_slots(WINDOW))
        window = hybrid.allocate_slots(WINDOW, ComponentType.SWA)
        hybrid.insert(path, window, component=ComponentType.SWA)
    hit = hybrid.query(paths[0], both, lock=True)
    assert hit.common_hit == WINDOW
    for path in paths[1:]:
        assert hybrid.query(path, both).common_hit == WINDOW
    free = total - WINDOW  # all but what is pinned
    assert len(hybrid.allocate_slots(free, ComponentType.SWA)) == free
    assert len(hybrid.allocate_slots(free + 1, ComponentType.SWA)) == 0  # all or none
    assert hybrid.query(paths[0], both).common_hit == WINDOW
    hit.finalize()


def test_reset_keeps_pinned_bytes_until_finalize(client: RadixClient) -> None:
    hashes = path_hashes(20)
    client.insert(hashes, client.allocate_slots(20))
    hit = client.query(hashes, lock=True)
    client.reset(cluster=True)
    assert client.query(hashes).common_hit == 0
    assert client.mempool_used() == 20
    hit.finalize()
    assert client.mempool_used() == 0


def test_index_only_server_has_no_store(region_name: str) -> None:
    with (
        RadixServer(ServerConfig(region_name, index_slots=100)),
        RadixClient(region_name, GEOMETRY) as client,
    ):
        assert client.store is None
        assert client.geometry is not None
        assert client.geometry["pools"]["full"]["num_slots"] == 100
        client.insert(path_hashes(4), client.allocate_slots(4))
        assert client.query(path_hashes(4)).common_hit == 4
        with pytest.raises(RadixError, match="index-only server"):
            client.slot_view(0)


def test_read_only_client_reads_and_changes_nothing(server: RadixServer) -> None:
    hashes = path_hashes(5)
    with (
        RadixClient(server.name, GEOMETRY) as writer,
        RadixClient(server.name, read_only=True) as reader,
    ):
        slots = writer.allocate_slots(5)
        writer.slot_view(int(slots[0]))[:4] = b"text"
        writer.insert(hashes, slots)
        assert reader.query(hashes).common_hit == 5
        assert bytes(reader.slot_view(int(slots[0]))[:4]) == b"text"
        assert reader.slot_view(0).readonly
        for refused in (
            lambda: reader.query(hashes, lock=True),
            lambda: reader.pull_async(hashes),
            lambda: reader.insert(hashes, slots),
            lambda: reader.allocate_slots(1),
            lambda: reader.recycle_slots(slots),
            reader.reset,
        ):
            with pytest.raises((RadixError, ValueError), match=r"read[-_]only"):
                refused()
        assert reader.query(hashes).common_hit == 5


def test_group_members_may_use_each_others_slots(server: RadixServer) -> None:
    with (
        RadixClient(server.name, GEOMETRY, group="engine") as one,
        RadixClient(server.name, group="engine") as two,
        RadixClient(server.name, group="other") as other,
    ):
        slots = one.allocate_slots(4)
        with pytest.raises(ValueError, match=str(int(slots[0]))):
            other.recycle_slots(slots)
        assert other.insert(path_hashes(4), slots).error == InsertError.BAD_REQUEST
        assert two.insert(path_hashes(2), slots[:2]).error == InsertError.OK
        two.recycle_slots(slots[2:])
        assert one.mempool_used() == 2


def test_threads_share_a_client(client: RadixClient) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for turn in range(200):
                hashes = path_hashes(6, seed=1000 * seed + turn)
                slots = client.allocate_slots(6)
                if len(slots) < 6:
                    client.recycle_slots(slots)
                    continue
                client.insert(hashes, slots)
                with_pin = client.pull_async(hashes).wait()
                with_pin.finalize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert client._index.check() == []
