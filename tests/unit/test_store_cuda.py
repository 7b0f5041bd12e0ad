# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Registration of a SlotStore with CUDA, over a fake driver."""

from __future__ import annotations

import gc
import logging
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_cuda import OUT_OF_MEMORY, FakeCuda

from radixshmem_core import cuda
from radixshmem_core.errors import RadixError
from radixshmem_core.store import SlotPoolConfig, SlotStore, SlotStoreConfig

DEADLINE_S = 60
SLOTS = 12
STRIDE = 8192
CHUNK = 4 * STRIDE  # three of them


@pytest.fixture
def fake(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    monkeypatch.setattr(cuda, "_CHUNK_BYTES", CHUNK)
    return fake_cuda


@pytest.fixture
def slots(region_name: str) -> Iterator[SlotStore]:
    config = SlotStoreConfig(region_name, full=SlotPoolConfig(SLOTS, STRIDE))
    with SlotStore.create(config) as made:
        yield made
    SlotStore.destroy(region_name)


def base_of(store: SlotStore) -> int:
    return int(np.frombuffer(store.data_view(), np.uint8).ctypes.data)


def test_all_slots_are_registered_in_order_and_given_back_in_reverse(
    slots: SlotStore, fake: FakeCuda
) -> None:
    base = base_of(slots)
    registration = slots.register_cuda()
    registration.wait(DEADLINE_S)
    assert registration.done()
    assert registration.error is None
    assert registration.registered_bytes == registration.total_bytes == slots.data_bytes
    begins = [base, base + CHUNK, base + 2 * CHUNK]
    calls = fake.calls()
    assert [(c.name, c.address, c.bytes, c.code) for c in calls] == [
        ("register", begin, CHUNK, 0) for begin in begins
    ]
    slots.unregister_cuda()
    given_back = fake.calls()[3:]
    assert [(c.name, c.address, c.code) for c in given_back] == [
        ("unregister", begin, 0) for begin in reversed(begins)
    ]
    assert fake.thread_is_clean, "that gave it back"


def test_it_goes_on_in_the_background_and_tells_how_far_it_is(
    slots: SlotStore, fake: FakeCuda
) -> None:
    fake.reset(allowed=2)
    registration = slots.register_cuda()
    assert slots.register_cuda() is registration, "one at a time"
    fake.await_calls(2)
    slots.write_slot(11, b"used meanwhile")
    with pytest.raises(TimeoutError, match=r"of SlotStore .* are registered with CUDA after 0"):
        registration.wait(0)
    assert not registration.done()
    fake.allow(-1)
    registration.wait(DEADLINE_S)
    assert registration.registered_bytes == slots.data_bytes
    assert slots.register_cuda() is registration, "it is done already"
    assert len(fake.calls()) == 3


def test_a_chunk_that_fails_gives_all_back_and_names_the_memlock_limit(
    slots: SlotStore, fake: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    fake.reset(fail_at=2, fail_code=OUT_OF_MEMORY)
    registration = slots.register_cuda()
    with pytest.raises(RadixError) as caught:
        registration.wait(DEADLINE_S)
    message = str(caught.value)
    assert f"bytes {2 * CHUNK} to {3 * CHUNK} of SlotStore {slots.name}" in message
    assert "cuMemHostRegister failed with 2 CUDA_ERROR_OUT_OF_MEMORY: a fake error" in message
    assert "memlock limit" in message
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != resource.RLIM_INFINITY:
        assert "ulimit -l unlimited" in message
    assert registration.error is caught.value
    assert registration.registered_bytes == fake.registered_bytes == 0
    assert registration.hold(STRIDE) is None
    assert fake.retained == 0
    assert "what was registered is given back" in caplog.text
    fake.reset()
    again = slots.register_cuda()
    assert again is not registration, "a failed one may be tried again"
    again.wait(DEADLINE_S)
    assert fake.registered_bytes == slots.data_bytes


def test_what_copies_in_flight_use_stays_when_a_later_chunk_fails(
    slots: SlotStore, fake: FakeCuda
) -> None:
    fake.reset(fail_at=2, allowed=2)
    registration = slots.register_cuda()
    fake.await_calls(2)
    while (hold := registration.hold(2 * CHUNK)) is None:
        assert not registration.done()
    assert registration.hold(2 * CHUNK + 1) is None, "not registered yet"
    fake.allow(-1)
    with pytest.raises(RadixError):
        registration.wait(DEADLINE_S)
    assert registration.hold(STRIDE) is None, "nothing new may use it"
    assert fake.registered_bytes == 2 * CHUNK
    del hold
    gc.collect()
    assert fake.registered_bytes == 0


def test_closing_gives_back_before_it_unmaps(slots: SlotStore, fake: FakeCuda) -> None:
    slots.register_cuda().wait(DEADLINE_S)
    slots.close()
    assert fake.registered_bytes == 0
    # The fake refuses to give back what is not mapped any more.
    assert [c.code for c in fake.calls() if c.name == "unregister"] == [0, 0, 0]


def test_what_copies_in_flight_use_outlives_closing(slots: SlotStore, fake: FakeCuda) -> None:
    registration = slots.register_cuda()
    registration.wait(DEADLINE_S)
    hold = registration.hold(slots.data_bytes)
    assert hold is not None
    slots.close()
    assert fake.registered_bytes == SLOTS * STRIDE
    assert slots.name in Path("/proc/self/maps").read_text()
    del hold
    gc.collect()
    assert [c.code for c in fake.calls() if c.name == "unregister"] == [0, 0, 0]
    assert slots.name not in Path("/proc/self/maps").read_text()


def test_closing_during_registration_stops_it(
    slots: SlotStore, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "_STOP_TIMEOUT_S", 0.01)
    fake.reset(allowed=1)
    registration = slots.register_cuda()
    fake.await_calls(1)
    slots.close()  # the driver is busy with the second chunk, or about to be
    assert registration.registered_bytes == 0
    fake.allow(-1)
    with pytest.raises(RadixError, match="was stopped"):
        registration.wait(DEADLINE_S)
    calls = fake.calls()
    assert fake.registered_bytes == 0
    assert all(call.code == 0 for call in calls)
    assert [c.name for c in calls].count("register") <= 2, "no further chunk was begun"


def test_a_store_that_is_closed_cannot_be_registered(slots: SlotStore, fake: FakeCuda) -> None:
    slots.close()
    with pytest.raises(RadixError, match="is closed"):
        slots.register_cuda()
    slots.unregister_cuda()
    assert fake.calls() == []


def test_a_process_without_a_driver_is_told_so_at_once(
    slots: SlotStore, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.reset(init_code=100)
    with pytest.raises(RadixError, match="needs an NVIDIA driver, and cuInit failed with 100"):
        slots.register_cuda()
    monkeypatch.setattr(cuda, "_DRIVER", "libno_such_driver.so.1")
    with pytest.raises(RadixError, match=r"libno_such_driver.*--gpus all"):
        slots.register_cuda()
    slots.unregister_cuda()


def test_progress_is_logged(
    slots: SlotStore,
    fake: FakeCuda,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(cuda, "_LOG_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO, "radixshmem.cuda"):
        slots.register_cuda().wait(DEADLINE_S)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[0].startswith("registered 32.0 KiB of 96.0 KiB of SlotStore ")
    assert lines[1].endswith("with CUDA so far")
    assert "registered 96.0 KiB of 96.0 KiB" in lines[2]


def test_the_end_of_a_process_stops_it(slots: SlotStore, fake: FakeCuda) -> None:
    code = """
import atexit, ctypes, sys
registrations = []
atexit.register(lambda: print(registrations[0].done()))  # the last one to run
from radixshmem_core import cuda
from radixshmem_core.store import SlotStore
number = ctypes.c_int64
driver = ctypes.CDLL(sys.argv[2])
driver.fake_reset(number(-1), 0, 0, number(1))  # the second chunk waits
stop = cuda.CudaRegistration.stop
def stop_and_go_on(self):
    driver.fake_allow(number(-1))
    stop(self)
cuda.CudaRegistration.stop = stop_and_go_on
cuda._DRIVER, cuda._CHUNK_BYTES = sys.argv[2], 8192
registrations.append(SlotStore.attach(sys.argv[1]).register_cuda())
"""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, slots.name, fake.library],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd="/",
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")
