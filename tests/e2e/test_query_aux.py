# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""query_aux of a client: all SWA or MAMBA slots of a path."""

from __future__ import annotations

import gc
import re
import threading

import numpy as np
import pytest
from e2e.harness import path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import RadixError
from radixshmem_core.server import RadixServer
from radixshmem_core.values import ComponentType, Geometry, InsertError

FULL, SWA, MAMBA = ComponentType
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
def client(region_name: str) -> RadixClient:
    config = ServerConfig(region_name, data_bytes="1M", swa_ratio=0.1, mamba_ratio=0.1)
    with RadixServer(config), RadixClient(region_name, HYBRID) as attached:
        yield attached


def put(client: RadixClient, count: int, seed: int = 0) -> np.ndarray:
    hashes = path_hashes(count, seed)
    assert client.insert(hashes, client.allocate_slots(count)).error == InsertError.OK
    return hashes


def put_aux(client: RadixClient, hashes: np.ndarray, component: ComponentType) -> list[int]:
    slots = client.allocate_slots(WINDOW if component == SWA else 1, component)
    assert client.insert(hashes, slots, component=component).error == InsertError.OK
    return slots.tolist()


def test_slots_of_each_block_from_start_on(client: RadixClient) -> None:
    hashes = put(client, 100)
    window = put_aux(client, hashes[:68], SWA)  # [64, 68)
    checkpoints = put_aux(client, hashes[:10], MAMBA) + put_aux(client, hashes[:90], MAMBA)
    swa = [-1] * 64 + window + [-1] * 32
    mamba = [-1] * 9 + checkpoints[:1] + [-1] * 79 + checkpoints[1:] + [-1] * 10
    for start in (0, 9, 10, 65, 99):
        found = client.query_aux(hashes, SWA, start)
        assert (found.status, found.common_hit) == (InsertError.OK, 100)
        assert found.slots.dtype == np.int32
        assert found.slots.tolist() == swa[start:]
        assert client.query_aux(hashes, MAMBA, start).slots.tolist() == mamba[start:]
    longer = np.concatenate([hashes, path_hashes(5, 1)])
    assert client.query_aux(longer, MAMBA, 80).slots.tolist() == mamba[80:]


def test_a_start_at_or_behind_the_hit_gives_no_slots(client: RadixClient) -> None:
    hashes = put(client, 8)
    for start in (8, 9, 2**31, 2**32, 2**63 - 1):
        found = client.query_aux(hashes, SWA, start)
        assert (found.status, found.common_hit, found.slots.tolist()) == (0, 8, [])
    missing = client.query_aux(path_hashes(3, 9), SWA, lock=True)
    assert (missing.status, missing.common_hit, missing.slots.tolist()) == (0, 0, [])
    assert missing.validate()
    missing.finalize()


def test_what_cannot_be_asked_is_a_bad_request(region_name: str) -> None:
    geometry = Geometry(16, 4000, swa_slot_bytes=1000, swa_window_blocks=WINDOW)
    config = ServerConfig(region_name, data_bytes="1M", swa_ratio=0.1)
    with RadixServer(config), RadixClient(region_name, geometry) as client:
        hashes = put(client, 8)
        for component, start in ((FULL, 0), (MAMBA, 0), (SWA, -1)):
            refused = client.query_aux(hashes, component, start, lock=True)
            assert refused.status == InsertError.BAD_REQUEST
            assert (refused.common_hit, refused.slots.tolist()) == (0, [])
            refused.finalize()
        assert client.query_aux(hashes, SWA).common_hit == 8
        with pytest.raises(ValueError, match="component 3 is not FULL"):
            client.query_aux(hashes, 3)
        with pytest.raises(ValueError, match=re.escape("start is 2.5; it must be an int")):
            client.query_aux(hashes, SWA, 2.5)  # type: ignore[arg-type]


def test_forms_of_arguments(client: RadixClient) -> None:
    hashes = put(client, 8)
    window = put_aux(client, hashes, SWA)
    for form in (hashes.tolist(), hashes.view(np.int64), np.repeat(hashes, 2)[::2]):
        found = client.query_aux(form, component=1, start=np.int32(4), lock=False)
        assert found.slots.tolist() == window
    assert client.index.query_aux(hashes, SWA, update_meta=False).common_hit == 8
    assert repr(found) == "AuxResult(status=OK, common_hit=8, pinned=False)"


def test_a_pin_holds_all_slots_and_the_path(client: RadixClient) -> None:
    hashes = put(client, 70)
    window = put_aux(client, hashes, SWA)
    found = client.query_aux(hashes, SWA, 60, lock=True)
    assert found.slots.tolist() == [-1] * 6 + window
    total = client.swa_mempool_total()
    assert len(client.allocate_slots(total - WINDOW, SWA)) == total - WINDOW
    assert len(client.allocate_slots(1, SWA)) == 0
    assert len(client.allocate_slots(client.mempool_total())) == client.mempool_total() - 70
    assert found.validate()
    assert client.query_aux(hashes, SWA, 60).slots.tolist() == found.slots.tolist()
    found.finalize()
    found.finalize()
    assert len(client.allocate_slots(WINDOW, SWA)) == WINDOW
    assert not found.validate()
    assert len(client.allocate_slots(70)) == 70


def test_slots_outlive_their_result_and_its_client(client: RadixClient) -> None:
    hashes = put(client, 8)
    window = put_aux(client, hashes, SWA)
    slots = client.query_aux(hashes, SWA, 4).slots
    found = client.query_aux(hashes, SWA, lock=True)
    client.close()
    gc.collect()
    assert slots.tolist() == window
    assert not found.validate()
    found.finalize()
    with pytest.raises(RadixError, match="closed"):
        client.query_aux(hashes, SWA)


def test_a_dropped_pin_warns_and_stays(client: RadixClient) -> None:
    hashes = put(client, 8)
    put_aux(client, hashes, SWA)
    with pytest.warns(ResourceWarning, match="an AuxResult with lock=True was dropped"):
        client.query_aux(hashes, SWA, lock=True)
    total = client.swa_mempool_total()
    assert len(client.allocate_slots(total, SWA)) == 0


def test_a_reader_asks_without_pins(client: RadixClient) -> None:
    hashes = put(client, 8)
    window = put_aux(client, hashes, SWA)
    with RadixClient(client.name, read_only=True) as reader:
        assert reader.query_aux(hashes, SWA, 4).slots.tolist() == window
        with pytest.raises(ValueError, match="read_only"):
            reader.query_aux(hashes, SWA, lock=True)


def test_threads_pin_while_slots_are_evicted(client: RadixClient) -> None:
    paths = [put(client, 20, seed) for seed in range(4)]
    wrong: list[str] = []
    held = [0] * len(paths)
    stop = threading.Event()

    def read(number: int) -> None:
        hashes = paths[number]
        while not stop.is_set():
            found = client.query_aux(hashes, SWA, 10, lock=True)
            for slot in found.slots.tolist():
                held[number] += slot >= 0
                if slot >= 0 and client.slot_view(slot, SWA)[:8] != hashes[-1].tobytes():
                    wrong.append(f"slot {slot} is another path's")
            if found.common_hit and not found.validate():
                wrong.append("a pinned answer changed")
            found.finalize()

    readers = [threading.Thread(target=read, args=(number,)) for number in range(len(paths))]
    for reader in readers:
        reader.start()
    try:
        for turn in range(100_000):
            if turn >= 2000 and min(held) > 0:  # a busy machine may let a thread wait
                break
            hashes = paths[turn % len(paths)]
            slots = client.allocate_slots(WINDOW, SWA)  # evicts another path's
            for slot in slots.tolist():
                client.slot_view(slot, SWA)[:8] = hashes[-1].tobytes()
            client.insert(hashes, slots, component=SWA)
            if turn % 5 == 0:
                total = client.swa_mempool_total()
                client.recycle_slots(client.allocate_slots(total, SWA), SWA)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    assert min(held) > 0
