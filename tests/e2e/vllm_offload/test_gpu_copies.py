# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The worker's copies for GPUs, on a fake GPU that does things as late, or as early, as it may."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from e2e.vllm_offload.gpu_rig import (
    BLOCKS,
    DEADLINE_S,
    FULL,
    PAGES,
    RANK,
    STRIDE,
    SWA,
    TIMEOUT_S,
    Rig,
)
from fake_cuda import FakeCuda

from radixshmem import RadixError
from radixshmem_core import cuda
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer


@pytest.fixture
def make(region_name: str, fake_cuda: FakeCuda) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def start(seed: int = 0) -> Rig:
        rigs.append(Rig(region_name, fake_cuda, seed))
        return rigs[-1]

    with RadixServer(ServerConfig(region_name, data_bytes="512K", swa_ratio=0.25)):
        yield start
        for rig in rigs:
            rig.close()


@pytest.fixture
def direct(make: Callable[..., Rig]) -> Rig:
    """All slots are registered."""
    rig = make()
    rig.registration.wait(DEADLINE_S)
    return rig


@pytest.fixture
def bounced(make: Callable[..., Rig], fake_cuda: FakeCuda) -> Rig:
    """No slot is ever registered."""
    fake_cuda.reset(fail_at=0)
    rig = make()
    with pytest.raises(RadixError, match="cannot register"):
        rig.registration.wait(DEADLINE_S)
    return rig


@pytest.fixture(params=["direct", "bounced"])
def rig(request: pytest.FixtureRequest) -> Rig:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Rig)
    return found


def test_a_store_reads_what_was_computed_before_it(rig: Rig) -> None:
    blocks, slots = [5, 3, 9, 40, 2], rig.slots(5)
    new = rig.random(5)
    rig.compute(0, blocks, new)
    job = rig.submit(True, (blocks, slots))
    assert rig.finish(rig.gpu.transfers_first) == [job]
    assert (rig.stored(FULL, slots) == new).all()
    assert rig.gpu.buffers == (2 if rig.registration.registered_bytes == 0 else 0)


def test_a_load_writes_after_what_was_computed_before_it(rig: Rig) -> None:
    blocks, slots = [5, 3, 9, 40, 2], rig.slots(5)
    content = rig.random(5)
    rig.fill(FULL, slots, content)
    rig.compute(0, blocks, np.zeros_like(content))
    job = rig.submit(False, (blocks, slots))
    assert rig.finish(rig.gpu.transfers_first) == [job]
    assert (rig.cached(0, blocks) == content).all()


def test_a_transfer_is_finished_when_its_bytes_are_there(rig: Rig) -> None:
    content = rig.random(5)
    stored, loaded = rig.slots(5), rig.slots(5)
    rig.fill(FULL, loaded, content)
    rig.put(0, range(5), content)
    jobs = {
        rig.submit(True, (range(5), stored)): lambda: rig.stored(FULL, stored),
        rig.submit(False, (range(10, 15), loaded)): lambda: rig.cached(0, range(10, 15)),
    }
    assert rig.finished() == []
    seen = []
    while len(seen) < 2:
        for job in rig.finished():
            seen.append(job)
            assert (jobs[job]() == content).all(), "told before it was true"
        if len(seen) < 2:
            assert rig.gpu.step()
    assert sorted(seen) == [1, 2]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("registered", [0, 5, 1000])
def test_random_jobs_in_any_order(
    make: Callable[..., Rig],
    fake_cuda: FakeCuda,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    registered: int,
) -> None:
    monkeypatch.setattr(cuda, "_CHUNK_BYTES", STRIDE)
    fake_cuda.reset(allowed=registered)
    rig = make(seed)
    dice = np.random.default_rng(seed)
    fake_cuda.await_calls(min(registered, rig.store.data_bytes // STRIDE))
    full, window = rig.slots(40), rig.slots(20, SWA)
    checks = []
    blocks = [dice.permutation(BLOCKS).tolist() for _ in range(2)]
    for _ in range(8):
        store = bool(dice.integers(2))
        groups = []
        for group, (kind, slots, most) in enumerate([(FULL, full, 6), (SWA, window, 3)]):
            count = int(dice.integers(1 - group, most))
            its_slots = [slots.pop() for _ in range(count)]
            its_blocks = [blocks[group].pop() for _ in range(count)]
            content = rig.random(count) if count else np.zeros((0, sum(PAGES)), np.uint8)
            if store:
                rig.compute(group, its_blocks, content)
            else:
                rig.fill(kind, its_slots, content)
                rig.compute(group, its_blocks, np.zeros_like(content))
            groups.append((its_blocks, its_slots))
            checks.append((store, group, kind, its_blocks, its_slots, content))
        rig.submit(store, *groups)
        for _ in range(int(dice.integers(6))):
            rig.gpu.step()
        if dice.integers(2):
            rig.finished()
    rig.worker.wait(set(range(1, 9)))
    rig.finished()
    fake_cuda.allow(-1)
    assert rig.worker.take_failed_slots() == set()
    assert rig.worker.take_failed_loads() == {}
    for store, group, kind, its_blocks, its_slots, content in checks:
        if its_slots:
            found = rig.stored(kind, its_slots) if store else rig.cached(group, its_blocks)
            assert (found == content).all()


def test_slots_are_copied_directly_as_soon_as_they_are_registered(
    make: Callable[..., Rig], fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "_CHUNK_BYTES", 8 * STRIDE)
    fake_cuda.reset(allowed=1)
    rig = make()
    fake_cuda.await_calls(1)
    while rig.registration.registered_bytes == 0:
        assert not rig.registration.done()
    slots = sorted(rig.slots(16))
    assert slots == list(range(16))
    content = rig.random(16)
    rig.put(0, range(16), content)
    rig.submit(True, (range(8), slots[:8]))
    rig.finish(rig.gpu.transfers_first)
    assert rig.gpu.buffers == 0
    rig.submit(True, (range(16), slots))
    rig.finish(rig.gpu.transfers_first)
    assert rig.gpu.buffers == 2
    assert (rig.stored(FULL, slots) == content).all()
    fake_cuda.allow(-1)


def test_wait_ends_when_the_copies_have_ended(rig: Rig) -> None:
    content, slots = rig.random(7), rig.slots(7)
    rig.put(0, range(7), content)
    job = rig.submit(True, (range(7), slots))
    other = rig.submit(False, ([9], rig.slots(1)))
    rig.gpu.loads.hangs = True
    rig.worker.wait({job})
    assert (rig.stored(FULL, slots) == content).all()
    assert rig.finished() == [job]
    rig.gpu.loads.hangs = False
    rig.worker.wait({other, 12345})
    assert rig.finished() == [other]


def _give_up_a_store(rig: Rig, count: int) -> list[int]:
    """One that hangs, up to its deadline. Returns: its slots."""
    slots = rig.slots(count)
    rig.put(0, range(count), rig.random(count))
    rig.gpu.stores.hangs = True
    job = rig.submit(True, (range(count), slots))
    rig.worker.wait({job})
    assert rig.gpu.now >= TIMEOUT_S
    assert rig.finished() == [job]
    assert rig.worker.take_failed_slots() == {(FULL, slot) for slot in slots}
    return slots


def test_a_late_store_keeps_its_slots_until_it_has_ended(direct: Rig) -> None:
    slots = _give_up_a_store(direct, 3)
    late = {(RANK, FULL, slot) for slot in slots}
    assert direct.worker.take_late_slots() == late
    assert direct.finished() == []
    assert direct.worker.take_ended_slots() == set()
    direct.gpu.stores.hangs = False
    direct.gpu.transfers_first()
    assert direct.finished() == []
    assert direct.worker.take_ended_slots() == late
    assert direct.worker.take_late_slots() == set()


def test_a_late_store_through_buffers_writes_no_slot_any_more(bounced: Rig) -> None:
    slots = _give_up_a_store(bounced, 9)
    bounced.worker.take_late_slots()
    bounced.gpu.stores.hangs = False
    bounced.finish(bounced.gpu.transfers_first)
    assert not bounced.stored(FULL, slots).any(), "they may be of somebody else by now"
    assert bounced.gpu.copies == 2 * 2 * len(PAGES), "what waited for a buffer was dropped"
    assert bounced.worker.take_ended_slots() == {(RANK, FULL, slot) for slot in slots}
    content = bounced.random(9)
    bounced.put(0, range(9), content)
    bounced.submit(True, (range(9), slots))
    bounced.finish(bounced.gpu.transfers_first)
    assert (bounced.stored(FULL, slots) == content).all(), "the buffers are free again"


def test_a_late_load_has_failed_and_what_is_computed_then_comes_after_it(rig: Rig) -> None:
    slots = rig.slots(3)
    rig.fill(FULL, slots, rig.random(3))
    rig.gpu.loads.hangs = True
    job = rig.submit(False, (range(3), slots))
    rig.worker.wait({job})
    assert rig.finished() == [job]
    assert rig.worker.take_failed_loads().keys() == {job}
    assert rig.worker.take_late_slots() == set()
    computed = rig.random(3)
    rig.compute(0, range(3), computed)  # by the request itself, or by another with its blocks
    rig.gpu.compute_first()
    rig.gpu.loads.hangs = False
    rig.finish(rig.gpu.compute_first)
    assert (rig.cached(0, range(3)) == computed).all()


def test_a_store_that_waits_for_computing_is_late_too(direct: Rig) -> None:
    direct.gpu.compute.hangs = True
    job = direct.submit(True, ([1], direct.slots(1)))
    assert direct.finished() == []
    direct.gpu.now += TIMEOUT_S
    assert direct.finished() == [job]
    assert len(direct.worker.take_late_slots()) == 1
    direct.gpu.compute.hangs = False


def test_what_a_copy_in_flight_uses_stays_registered_and_mapped(
    direct: Rig, fake_cuda: FakeCuda
) -> None:
    slots = direct.slots(3)
    content = direct.random(3)
    direct.fill(FULL, slots, content)
    job = direct.submit(False, (range(3), slots))
    registered = fake_cuda.registered_bytes
    direct.client.close()  # as when its server was replaced
    gc.collect()
    assert fake_cuda.registered_bytes == registered > 0
    direct.gpu.transfers_first()
    assert direct.finished() == [job]
    assert (direct.cached(0, range(3)) == content).all()
    gc.collect()
    assert fake_cuda.registered_bytes == 0


def test_buffers_of_a_store_whose_server_went_are_given_up(bounced: Rig) -> None:
    slots = bounced.slots(9)
    job = bounced.submit(True, (range(9), slots))
    bounced.client.close()
    assert bounced.finish(bounced.gpu.transfers_first) == [job]
    assert bounced.worker.take_failed_slots() == {(FULL, slot) for slot in slots}
    assert bounced.worker.take_late_slots() == set()


def test_a_gpu_that_refuses_is_a_failed_transfer(rig: Rig) -> None:
    for stream in rig.gpu.streams:
        stream.refuses = True
    store = rig.submit(True, (range(5), rig.slots(5)))
    load = rig.submit(False, (range(5), rig.slots(5)))
    assert sorted(rig.finish(rig.gpu.transfers_first)) == [store, load]
    assert len(rig.worker.take_failed_slots()) == 5
    assert rig.worker.take_failed_loads().keys() == {load}


def test_a_transfer_without_a_pinned_buffer_has_failed(
    bounced: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(size: int) -> None:
        raise RuntimeError("CUDA error: out of memory")

    slots = bounced.slots(5)
    with monkeypatch.context() as patch:
        patch.setattr(bounced.gpu, "pinned", refuse)
        jobs = [bounced.submit(store, (range(5), slots)) for store in (True, False)]
        assert sorted(bounced.finished()) == jobs
    assert len(bounced.worker.take_failed_slots()) == 5
    assert bounced.worker.take_failed_loads() == {jobs[1]: "request"}
    job = bounced.submit(True, (range(5), slots))
    assert bounced.finish(bounced.gpu.transfers_first) == [job]
    assert bounced.worker.take_failed_slots() == set()


def test_a_gpu_that_broke_is_a_failed_transfer(rig: Rig) -> None:
    load = rig.submit(False, (range(5), rig.slots(5)))
    for event in rig.gpu.events:
        event.broken = True
    assert rig.finished() == [load]
    assert rig.worker.take_failed_loads().keys() == {load}


def test_slots_that_do_not_exist_are_a_failed_transfer(direct: Rig) -> None:
    job = direct.submit(False, ([1, 2], [0, 100000]))
    assert direct.finished() == [job]
    assert direct.worker.take_failed_loads().keys() == {job}
    assert direct.gpu.copies == 0


def test_shutdown_lets_copies_end(rig: Rig) -> None:
    content, slots = rig.random(9), rig.slots(9)
    rig.put(0, range(9), content)
    rig.submit(True, (range(9), slots))
    rig.worker.shutdown()
    with pytest.raises(RadixError, match="closed"):
        rig.client.mempool_free()
    assert rig.scheduler.store is not None
    rig.store = rig.scheduler.store
    assert (rig.stored(FULL, slots) == content).all()


def test_shutdown_keeps_the_slots_of_copies_that_do_not_end(direct: Rig) -> None:
    slots = direct.slots(3)
    direct.gpu.stores.hangs = True
    direct.submit(True, (range(3), slots))
    direct.worker.shutdown()
    assert direct.gpu.now >= TIMEOUT_S
    assert direct.client.mempool_free() > 0, "still attached"
    direct.gpu.stores.hangs = False
