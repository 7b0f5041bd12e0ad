# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import enum
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixshmem_core.errors import GeometryMismatch, RadixError, ServerNotReady
from radixshmem_core.store import SlotPoolConfig, SlotStore, SlotStoreConfig
from radixshmem_core.values import ComponentType

FULL, SWA, MAMBA = ComponentType
FULL_POOL = SlotPoolConfig(10, 1000)
MAMBA_POOL = SlotPoolConfig(3, 5000)


def config(name: str, **changes: Any) -> SlotStoreConfig:
    fields: dict[str, Any] = {"full": FULL_POOL, "mamba": MAMBA_POOL, "slot_align": 512}
    return SlotStoreConfig(name, **(fields | changes))


@pytest.fixture
def store(region_name: str) -> Iterator[SlotStore]:
    with SlotStore.create(config(region_name, nonce=2**63 + 5)) as made:
        yield made
    SlotStore.destroy(region_name)


@pytest.fixture
def reader(store: SlotStore) -> Iterator[SlotStore]:
    with SlotStore.attach(store.name, read_only=True) as attached:
        yield attached


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",  # a source folder in the current directory would hide the installed package
    )


# ---- normal


def test_describes_its_pools(store: SlotStore, region_name: str) -> None:
    assert store.name == region_name
    assert store.pool_mask == 1 | 4
    assert store.is_hugepage is False
    assert store.read_only is False
    assert store.nonce == 2**63 + 5
    assert store.pool(FULL) == SlotPoolConfig(10, 1024)
    assert store.pool(MAMBA) == SlotPoolConfig(3, 5120)
    assert store.data_bytes == len(store.data_view()) == 10 * 1024 + 3 * 5120
    assert store.slot_offset(9) == 9 * 1024
    assert store.slot_offset(2, MAMBA) == 10 * 1024 + 2 * 5120


def test_fresh_slots_read_as_zeros(store: SlotStore) -> None:
    assert store.read_slot(9) == bytes(1024)
    assert bytes(store.data_view()) == bytes(store.data_bytes)


@pytest.mark.parametrize("kind", [FULL, MAMBA])
def test_slot_view_is_a_writable_stride_of_bytes(store: SlotStore, kind: ComponentType) -> None:
    view = store.slot_view(1, kind)
    assert (view.ndim, view.format, view.itemsize, view.readonly) == (1, "B", 1, False)
    assert view.c_contiguous
    assert len(view) == store.pool(kind).slot_bytes
    view[:3] = b"abc"
    offset = store.slot_offset(1, kind)
    assert bytes(store.data_view()[offset : offset + 3]) == b"abc"
    in_pool = store.pool(kind).slot_bytes
    assert bytes(store.pool_view(kind)[in_pool : in_pool + 3]) == b"abc"
    assert store.read_slot(1, kind) == b"abc" + bytes(len(view) - 3)


def test_numpy_uses_a_view_in_place(store: SlotStore) -> None:
    array = np.frombuffer(store.slot_view(3)[:1000], dtype=np.float32)
    array[:] = 1.5
    assert np.frombuffer(store.read_slot(3), dtype=np.float32)[:250].tolist() == [1.5] * 250


def test_write_slot_leaves_the_rest_of_the_slot(store: SlotStore) -> None:
    store.write_slot(2, b"x" * 1024)
    store.write_slot(2, np.arange(4, dtype=np.uint32).reshape(2, 2))
    store.write_slot(2, b"")
    assert store.read_slot(2)[:17] == np.arange(4, dtype=np.uint32).tobytes() + b"x"


class PlainEnum(enum.Enum):
    ANY = 2


class OtherIntEnum(enum.IntEnum):
    ANY = 2


@pytest.mark.parametrize("kind", [2, MAMBA, PlainEnum.ANY, OtherIntEnum.ANY, np.int64(2)])
def test_a_kind_is_anything_that_stands_for_an_int(store: SlotStore, kind: Any) -> None:
    store.write_slot(0, b"m", kind)
    assert bytes(store.slot_view(0, kind)[:1]) == b"m"
    assert store.read_slot(0, kind)[:1] == b"m"
    assert len(store.pool_view(kind)) == 3 * 5120
    assert store.slot_offset(0, kind) == 10 * 1024
    assert store.copy_in([], [], [], kind=kind) == 0
    assert store.read_slot(0)[:1] == b"\0"


def test_copy_in_and_out_gather_rows_of_fragments(store: SlotStore) -> None:
    layers = [np.full((4, 100), layer + 1, np.uint8) for layer in range(3)]
    slots = np.array([8, 2, 5, 0], np.int32)
    ptrs = np.array([[layer[i].ctypes.data for layer in layers] for i in range(4)], np.uint64)
    sizes = np.array([100, 50, 7], np.uint64)
    assert store.copy_in(slots, ptrs.ravel(), sizes, offset=3) == 4 * 157
    expected = bytes(3) + b"\1" * 100 + b"\2" * 50 + b"\3" * 7
    for slot in slots:
        assert store.read_slot(slot) == expected + bytes(1024 - len(expected))
    for layer in layers:
        layer[:] = 0
    every_size = np.tile(sizes, 4)
    assert store.copy_out(slots.astype(np.int64), ptrs.ravel(), every_size, offset=3) == 4 * 157
    assert [int(layer.sum()) for layer in layers] == [400, 4 * 2 * 50, 4 * 3 * 7]


def test_copies_take_lists(store: SlotStore) -> None:
    source = np.arange(64, dtype=np.uint8)
    assert store.copy_in([4, 5], [source.ctypes.data] * 2, [64], kind=FULL, offset=960) == 128
    assert store.read_slot(5)[960:] == source.tobytes()
    assert store.copy_in([], [], []) == 0
    assert store.copy_in([1], [], []) == 0


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
    store = SlotStore.create(config(region_name))
    assert SlotStore.destroy(region_name) is True
    assert SlotStore.destroy(region_name) is False
    store.write_slot(0, b"still here")
    assert store.read_slot(0)[:10] == b"still here"
    store.close()


# ---- edge


def test_slot_align_of_one_packs_slots(region_name: str) -> None:
    with SlotStore.create(config(region_name, slot_align=1, swa=SlotPoolConfig(7, 3))) as store:
        assert store.pool(SWA) == SlotPoolConfig(7, 3)
        assert store.slot_offset(1, SWA) == 10 * 1000 + 3
        store.write_slot(1, b"abc", SWA)
        assert bytes(store.pool_view(SWA)) == bytes(3) + b"abc" + bytes(15)
        assert store.slot_offset(0, MAMBA) == 10 * 1000 + 21
    SlotStore.destroy(region_name)


def test_region_has_the_mode_and_group_asked_for(region_name: str) -> None:
    SlotStore.create(config(region_name, mode=0o660, gid=os.getgid())).close()
    status = os.stat(f"/dev/shm{region_name}")
    assert (status.st_mode & 0o7777, status.st_gid) == (0o660, os.getgid())
    SlotStore.destroy(region_name)


def test_prefault_reports_progress_and_changes_no_byte(region_name: str) -> None:
    pool = SlotPoolConfig(150, 1 << 20)
    with SlotStore.create(SlotStoreConfig(region_name, full=pool, prefault=False)) as store:
        SlotStore.destroy(region_name)
        store.write_slot(0, b"first")
        store.write_slot(149, b"last")
        seen: list[tuple[int, int]] = []
        store.prefault(threads=3, on_progress=lambda done, total: seen.append((done, total)))
        assert [done for done, _ in seen] == sorted({done for done, _ in seen})
        assert len(seen) > 1
        assert seen[-1] == (150 << 20, 150 << 20)
        assert store.read_slot(0)[:6] == b"first\0"
        assert store.read_slot(149)[:5] == b"last\0"


class Cancelled(Exception):
    pass


def test_prefault_ends_when_its_callback_raises(store: SlotStore) -> None:
    def stop(done: int, total: int) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        store.prefault(on_progress=stop)
    store.prefault(1)


def test_views_that_are_gone_are_forgotten(store: SlotStore) -> None:
    kept = [store.slot_view(i % 10) for i in range(3000)]
    for _ in range(20_000):
        store.slot_view(0)
    assert len(store._views) < 10_000
    store.close()
    for view in kept:
        with pytest.raises(ValueError, match="released"):
            len(view)


def test_reading_side_sees_writes(store: SlotStore, reader: SlotStore) -> None:
    view = reader.slot_view(6)
    store.write_slot(6, b"news")
    assert bytes(view[:4]) == b"news"
    target = np.zeros(4, np.uint8)
    assert reader.copy_out([6], [target.ctypes.data], [4]) == 4
    assert target.tobytes() == b"news"


# ---- misuse


@pytest.mark.parametrize("slot", [-1, 10, 2**31, -(2**31), 2**70, np.int32(-1)])
def test_a_slot_out_of_range_is_an_index_error(store: SlotStore, slot: int) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.slot_view(slot),
        lambda: store.slot_offset(slot),
        lambda: store.read_slot(slot),
        lambda: store.write_slot(slot, b""),
    ]
    for call in calls:
        with pytest.raises(IndexError, match=rf"slot {int(slot)} .*FULL pool.*slots 0 to 9"):
            call()


def test_a_copy_to_a_slot_out_of_range_is_an_index_error(store: SlotStore) -> None:
    source = np.ones(4, np.uint8)
    for slot in (-1, 10):
        with pytest.raises(IndexError, match=f"slot {slot}"):
            store.copy_in([0, slot], [source.ctypes.data] * 2, [4])
    assert store.read_slot(0) == bytes(1024)


@pytest.mark.parametrize("kind", [SWA, 1, 3, -1, None, "0", PlainEnum])
def test_a_pool_that_is_not_there_is_a_value_error(store: SlotStore, kind: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.slot_view(0, kind),
        lambda: store.slot_offset(0, kind),
        lambda: store.pool(kind),
        lambda: store.pool_view(kind),
        lambda: store.read_slot(0, kind),
        lambda: store.write_slot(0, b"", kind),
        lambda: store.copy_in([], [], [], kind=kind),
        lambda: store.copy_out([], [], [], kind=kind),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"no SWA pool|is no component"):
            call()


def test_slots_must_be_integers(store: SlotStore) -> None:
    with pytest.raises(TypeError):
        store.slot_view(1.0)  # type: ignore[arg-type]
    for wrong in ([0.0], ["0"], np.zeros(1), np.zeros((1, 1), np.int32), np.zeros(1, np.int16)):
        with pytest.raises(ValueError, match="slots"):
            store.copy_in(wrong, [1], [1])
    with pytest.raises(ValueError, match="sizes must be uint64"):
        store.copy_in([0], [1], np.ones(1, np.int32))


def test_refused_copies_change_nothing(store: SlotStore) -> None:
    source = np.ones(2048, np.uint8)
    at = source.ctypes.data
    cases: list[tuple[list[int], list[int], list[int], int]] = [
        ([0, 1], [at] * 3, [1], 0),
        ([0, 1], [at] * 4, [1], 0),
        ([0, 1], [at] * 4, [1] * 3, 0),
        ([0], [at], [1025], 0),
        ([0], [at], [1], 1024),
        ([0], [at], [1], -1),
        ([0], [at, at], [1024, 1], 0),
        ([0], [at], [-1], 0),
        ([0], [at, 0], [1, 1], 0),
        ([], [at], [1], 0),
    ]
    for slots, ptrs, sizes, offset in cases:
        for copy in (store.copy_in, store.copy_out):
            with pytest.raises(ValueError, match=r"len\(|fragment|offset|null"):
                copy(slots, ptrs, np.array(sizes, np.int64), offset=offset)
    assert bytes(store.data_view()) == bytes(store.data_bytes)
    assert source.all()


def test_write_slot_refuses_what_does_not_fit(store: SlotStore) -> None:
    with pytest.raises(ValueError, match=r"1025 bytes .*1024"):
        store.write_slot(0, bytes(1025))
    with pytest.raises(TypeError):
        store.write_slot(0, "text")  # type: ignore[arg-type]
    assert store.read_slot(0) == bytes(1024)


def test_a_read_only_store_cannot_be_written(reader: SlotStore) -> None:
    assert reader.read_only is True
    for view in (reader.slot_view(0), reader.data_view(), reader.pool_view(MAMBA)):
        assert view.readonly
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1
    array = np.frombuffer(reader.slot_view(0), np.uint8)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        reader.write_slot(0, b"x")
    with pytest.raises(ValueError, match="read-only"):
        reader.copy_in([0], [array.ctypes.data], [1])
    with pytest.raises(ValueError, match="read-only"):
        reader.prefault()
    assert reader.read_slot(0) == bytes(1024)


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
    SlotStore.create(config(region_name))
    gc.collect()
    assert mappings(region_name) == 0
    assert SlotStore.destroy(region_name) is True


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
        except (RadixError, ValueError) as error:
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
        lambda: SlotStore.create(config(name)),
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
        SlotStore.create(config(region_name, **changes))


def test_too_large_a_store_names_the_fix(region_name: str) -> None:
    with pytest.raises(RadixError, match=r"(?s)needs .*(--shm-size|memory\.max)"):
        SlotStore.create(config(region_name, full=SlotPoolConfig(1 << 15, 1 << 30)))


def test_a_taken_name_is_refused(store: SlotStore) -> None:
    with pytest.raises(RadixError, match="destroy it first"):
        SlotStore.create(config(store.name))
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
