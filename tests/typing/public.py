# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Types of the public interface, as mypy must see them; checked by `make test`, never run."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import radixshmem

with radixshmem.RadixServer(radixshmem.ServerConfig(name="/kv", data_bytes="64G")) as server:
    assert_type(server.geometry, dict[str, Any] | None)

hashes = radixshmem.compute_hashes(np.arange(64), 16)
assert_type(hashes, npt.NDArray[np.uint64])
assert_type(radixshmem.fold_page_keys(["00" * 32], None, salt=7), npt.NDArray[np.uint64])
radixshmem.fold_page_keys(["00" * 32], [], 7)  # type: ignore[call-arg]

with radixshmem.RadixClient("/kv", radixshmem.Geometry(16, 32768)) as client:
    assert_type(client.wait_ready(10.0).mode, str)
    assert_type(client.index, radixshmem.RadixClient)
    assert_type(client.store, radixshmem.SlotStore | None)

    hit = client.query(hashes, radixshmem.COMPONENT_MASK_FULL, lock=True)
    assert_type(hit, radixshmem.QueryResult)
    assert_type(hit.common_hit, int)
    assert_type(hit.full_slots, npt.NDArray[np.int32])
    assert_type(hit.full_fragments, list[tuple[int, int, list[int]]])
    assert_type(hit.mamba, tuple[int, int] | None)
    hit.finalize()

    sparse = client.query_aux(hashes, radixshmem.ComponentType.SWA, 2, lock=True)
    assert_type(sparse, radixshmem.AuxResult)
    assert_type(sparse.status, int)
    assert_type(sparse.slots, npt.NDArray[np.int32])
    assert_type(sparse.validate(), bool)
    sparse.finalize()
    client.query_aux(hashes)  # type: ignore[call-arg]
    client.query_aux(hashes, 1, 0, True)  # type: ignore[call-arg]

    slots = client.allocate_slots(4)
    assert_type(slots, npt.NDArray[np.int32])
    landed = client.insert(hashes, slots, hit.common_hit, component=radixshmem.ComponentType.FULL)
    assert_type(landed, radixshmem.InsertResult)
    assert_type(landed.landed, tuple[int, int])
    assert_type(client.query_many([hashes]), list[radixshmem.QueryResult])

    job = client.pull_async(hashes, timeout_ms=100)
    assert_type(job, radixshmem.PullJob)
    assert_type(job.wait(timeout_s=1.0), radixshmem.PullResult)
    assert_type(client.kvevent_drain(100), tuple[npt.NDArray[np.uint64], bool])
    assert_type(client.flush(), bool)

    client.query(hashes, 1, True)  # type: ignore[call-arg]
    client.pull_async(hashes, 1, False)  # type: ignore[call-arg]

store = radixshmem.SlotStore.create(
    radixshmem.SlotStoreConfig("/kv_data", full=radixshmem.SlotPoolConfig(8, 4096))
)
assert_type(store.slot_view(0, radixshmem.ComponentType.FULL), memoryview)
assert_type(store.pool(0), radixshmem.SlotPoolConfig)
assert_type(store.read_slot(0), bytes)
assert_type(store.copy_in([0], [0], [0], kind=0, offset=0), int)

assert_type(radixshmem.__version__, str)
assert_type(radixshmem._data.TRANSFER_BACKENDS, tuple[str, ...])
