# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Creating, attaching, destroying and closing a SlotStore."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.stores import FULL, MAMBA, store_config

from radixshmem_core.errors import GeometryMismatch, RadixError, ServerNotReady
from radixshmem_core.store import SlotPoolConfig, SlotStore, SlotStoreConfig


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",  # a source folder in the current directory would hide the installed package
    )


def test_two_processes_share_the_bytes_and_the_child_leaves_the_region(store: SlotStore) -> None:
    store.write_slot(7, b"from the parent")
    code = """
import sys
from radixshmem_core.store import SlotStore
store = SlotStore.attach(sys.argv[1])
assert store.read_slot(7)[:15] == b"from the parent"
store.write_slot(2, b"from the child", 2)
view = store.slot_view(0)
"""
    child = run_python(code, store.name)
    assert child.returncode == 0, child.stderr
    assert child.stderr == ""
    assert store.read_slot(2, MAMBA)[:14] == b"from the child"
    assert Path("/dev/shm", store.name[1:]).exists()


def test_destroy_keeps_what_is_mapped(region_name: str) -> None:
    store = SlotStore.create(store_config(region_name))
    assert SlotStore.destroy(region_name) is True
    assert SlotStore.destroy(region_name) is False
    store.write_slot(0, b"still here")
    assert store.read_slot(0)[:10] == b"still here"
    store.close()


def test_region_has_the_mode_and_group_asked_for(region_name: str) -> None:
    SlotStore.create(store_config(region_name, mode=0o660, gid=os.getgid())).close()
    status = os.stat(f"/dev/shm{region_name}")
    assert (status.st_mode & 0o7777, status.st_gid) == (0o660, os.getgid())
    SlotStore.destroy(region_name)


def test_every_use_after_close_is_an_error(store: SlotStore) -> None:
    store.close()
    store.close()
    assert store.name in repr(store)
    calls: list[Callable[[], object]] = [
        lambda: store.pool_mask,
        lambda: store.is_hugepage,
        lambda: store.read_only,
        lambda: store.nonce,
        lambda: store.data_bytes,
        lambda: store.pool(FULL),
        lambda: store.data_view(),
        lambda: store.pool_view(FULL),
        lambda: store.slot_view(0),
        lambda: store.slot_offset(0),
        lambda: store.read_slot(0),
        lambda: store.write_slot(0, b""),
        lambda: store.copy_in([], [], []),
        lambda: store.copy_out([], [], []),
        lambda: store.prefault(),
    ]
    for call in calls:
        with pytest.raises(RadixError, match=f"SlotStore {store.name} is closed"):
            call()


def test_views_are_released_by_close(store: SlotStore) -> None:
    views = [store.slot_view(1), store.data_view(), store.pool_view(MAMBA)]
    store.close()
    for view in views:
        with pytest.raises(ValueError, match="released"):
            view[0]


def mappings(name: str) -> int:
    return Path("/proc/self/maps").read_text().count(name)


def test_arrays_and_slices_keep_the_mapping_after_close(store: SlotStore) -> None:
    array = np.frombuffer(store.slot_view(1), np.uint8)
    part = store.slot_view(2)[4:8]
    store.close()
    array[:] = 3
    part[:] = b"part"
    assert mappings(store.name) == 1
    with SlotStore.attach(store.name) as other:
        assert other.read_slot(1) == b"\3" * 1024
        assert other.read_slot(2)[:8] == b"\0\0\0\0part"
    del array, part
    gc.collect()
    assert mappings(store.name) == 0


def test_a_store_that_is_dropped_unmaps(region_name: str) -> None:
    SlotStore.create(store_config(region_name))
    gc.collect()
    assert mappings(region_name) == 0
    assert SlotStore.destroy(region_name) is True


def test_a_view_asked_for_in_the_middle_of_close_is_refused(store: SlotStore) -> None:
    pools = store._pools
    store.close()
    store._pools = pools  # as a thread has it that looked before close() went on
    for view in (store.slot_view, store.pool_view):
        with pytest.raises(RadixError, match=f"SlotStore {store.name} is closed"):
            view(0)


def test_close_in_the_middle_of_copies_is_safe(region_name: str) -> None:
    pool = SlotPoolConfig(64, 1 << 20)
    store = SlotStore.create(SlotStoreConfig(region_name, full=pool))
    SlotStore.destroy(region_name)
    target = np.zeros((64, 1 << 20), np.uint8)
    ptrs = target.ctypes.data + np.arange(64, dtype=np.uint64) * np.uint64(1 << 20)
    started = threading.Barrier(3)
    errors: list[BaseException] = []

    def copy() -> None:
        started.wait(30)
        try:
            while True:
                store.copy_out(np.arange(64, dtype=np.int32), ptrs, [1 << 20])
                store.slot_view(1)
        except RadixError as error:
            errors.append(error)

    threads = [threading.Thread(target=copy) for _ in range(2)]
    for thread in threads:
        thread.start()
    started.wait(30)
    store.close()
    for thread in threads:
        thread.join(60)
    assert [thread.is_alive() for thread in threads] == [False, False]
    assert len(errors) == 2


@pytest.mark.parametrize("name", ["", "x", "/", "/a/b", "/..", "/" + "x" * 200, "/a\0b"])
def test_bad_names_are_refused(name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: SlotStore.create(store_config(name)),
        lambda: SlotStore.attach(name),
        lambda: SlotStore.destroy(name),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="region name"):
            call()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"full": None, "mamba": None}, "at least one pool"),
        ({"full": SlotPoolConfig(0, 10)}, "pool full cannot have 0 slots of 10 bytes"),
        ({"swa": SlotPoolConfig(10, 0)}, "pool swa cannot have 10 slots of 0 bytes"),
        ({"swa": SlotPoolConfig(-1, 8)}, "num_slots = -1"),
        ({"swa": SlotPoolConfig(2**30, 8)}, "pool swa"),
        ({"swa": SlotPoolConfig(2**64, 8)}, "num_slots"),
        ({"full": SlotPoolConfig(2**29, 2**40)}, "does not fit"),
        ({"slot_align": 0}, "slot_align = 0"),
        ({"hugepage_path": "/dev/shm"}, "not a hugetlbfs mount"),
    ],
)
def test_impossible_configs_are_refused(
    region_name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SlotStore.create(store_config(region_name, **changes))


def test_too_large_a_store_names_the_fix(region_name: str) -> None:
    with pytest.raises(RadixError, match=r"(?s)needs .*(--shm-size|memory\.max)"):
        SlotStore.create(store_config(region_name, full=SlotPoolConfig(1 << 15, 1 << 30)))


def test_a_taken_name_is_refused(store: SlotStore) -> None:
    with pytest.raises(RadixError, match="destroy it first"):
        SlotStore.create(store_config(store.name))
    assert store.read_slot(0) == bytes(1024)


def test_attach_to_nothing_says_so_at_the_deadline(region_name: str) -> None:
    with pytest.raises(ServerNotReady, match=rf"{region_name}.*waited 3 ms"):
        SlotStore.attach(region_name, timeout_ms=3)


def test_attach_refuses_what_is_no_store(region_name: str) -> None:
    file = Path(f"/dev/shm{region_name}")
    for content in (b"x", b"garbage!" * 10_000):
        file.write_bytes(content)
        with pytest.raises(RadixError, match="not a usable SlotStore"):
            SlotStore.attach(region_name)
    SlotStore.destroy(region_name)


def test_attach_refuses_another_layout(store: SlotStore) -> None:
    with open(f"/dev/shm{store.name}", "r+b") as file:
        file.seek(8)
        file.write((1234).to_bytes(8, "little"))
    with pytest.raises(GeometryMismatch, match="layout 1234, this library has"):
        SlotStore.attach(store.name)


def test_attach_refuses_a_truncated_file(store: SlotStore) -> None:
    os.truncate(f"/dev/shm{store.name}", 8192)
    with pytest.raises(RadixError, match="not a usable SlotStore"):
        SlotStore.attach(store.name)


@pytest.mark.parametrize("timeout_ms", [-1, 2**40])
def test_attach_refuses_impossible_timeouts(region_name: str, timeout_ms: int) -> None:
    with pytest.raises((TypeError, ValueError)):
        SlotStore.attach(region_name, timeout_ms=timeout_ms)
