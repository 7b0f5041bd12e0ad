# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Blocks of a KV cache on a real GPU go into the slots and come back."""

# ruff: noqa: E402 - without PyTorch or vLLM there is nothing to import

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch with CUDA")
pytest.importorskip("vllm", reason="needs vLLM")

from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)

from radixshmem import ComponentType, Geometry, RadixClient
from radixshmem.integrations.vllm_offload.copy_cuda import CudaCopier
from radixshmem.integrations.vllm_offload.device import TorchCuda
from radixshmem.integrations.vllm_offload.groups import GroupShape, map_groups
from radixshmem.integrations.vllm_offload.transfer import SlotSpec
from radixshmem.integrations.vllm_offload.worker import RadixShmemWorker
from radixshmem_core import cuda
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

LAYERS = 32
PAGE = 64 << 10  # bytes of a block in one layer: 2 MiB in all
BLOCKS = 512
DEADLINE_S = 120
TIMEOUT_S = 60.0


class Rig:
    """A worker whose KV cache is on the GPU; without `register`, all goes through buffers."""

    def __init__(self, name: str, register: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        if not register:
            monkeypatch.setattr(cuda, "_DRIVER", "libno_such_driver.so.1")
        groups = map_groups([GroupShape("Full", ComponentType.FULL)], 16).placed(
            [[LAYERS * PAGE]], 0
        )
        self.layers = [
            torch.randint(-128, 128, (BLOCKS, PAGE), dtype=torch.int8, device="cuda")
            for _ in range(LAYERS)
        ]
        caches = CanonicalKVCaches(
            [CanonicalKVCacheTensor(layer, PAGE) for layer in self.layers],
            [[CanonicalKVCacheRef(i, PAGE) for i in range(LAYERS)]],
        )
        self.client = RadixClient(name, Geometry(16, LAYERS * PAGE))
        copier = CudaCopier(TorchCuda(self.layers[0].device), TIMEOUT_S)
        self.worker = RadixShmemWorker(self.client, groups, 0, caches, TIMEOUT_S, copier)
        assert self.client.store is not None
        self.store = self.client.store
        if register:
            self.store.register_cuda().wait(DEADLINE_S)
        self._jobs = 0

    def copy(self, store: bool, blocks: list[int], slots: list[int]) -> float:
        """Wait for a transfer; GB per second."""
        self._jobs += 1
        gpu = GPULoadStoreSpec(blocks, [len(blocks)], [0])
        spec = SlotSpec(np.array(slots, np.int32), self.store.nonce, "request")
        begin = time.perf_counter()
        if store:
            self.worker.submit_store(self._jobs, gpu, spec)
        else:
            self.worker.submit_load(self._jobs, spec, gpu)
        self.worker.wait({self._jobs})
        took = time.perf_counter() - begin
        assert [result.job_id for result in self.worker.get_finished()] == [self._jobs]
        assert self.worker.take_failed_loads() == {}
        assert self.worker.take_failed_slots() == set()
        return len(blocks) * LAYERS * PAGE / took / 1e9

    def content(self, blocks: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]]:
        found: np.ndarray[tuple[int, ...], np.dtype[np.int8]] = (
            torch.stack([layer[blocks] for layer in self.layers], dim=1).cpu().numpy()
        )
        return found


@pytest.fixture(params=["registered", "through buffers"])
def rig(
    region_name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Rig]:
    with RadixServer(ServerConfig(region_name, data_bytes=(BLOCKS + 8) * LAYERS * PAGE)):
        made = Rig(region_name, request.param == "registered", monkeypatch)
        yield made
        made.worker.shutdown()


def test_blocks_come_back_as_they_were(rig: Rig) -> None:
    dice = np.random.default_rng(1)
    slots = rig.client.allocate_slots(BLOCKS).tolist()
    stored = dice.permutation(BLOCKS).tolist()
    want = rig.content(stored)
    store_rate = rig.copy(True, stored, slots)
    in_slots = np.stack([np.frombuffer(rig.store.slot_view(s), np.int8) for s in slots])
    assert (in_slots[:, : LAYERS * PAGE].reshape(want.shape) == want).all()
    for layer in rig.layers:
        layer.zero_()
    loaded = dice.permutation(BLOCKS).tolist()
    load_rate = rig.copy(False, loaded, slots)
    assert (rig.content(loaded) == want).all()
    print(f"store {store_rate:.1f} GB/s, load {load_rate:.1f} GB/s")


def test_a_store_reads_what_was_computed_before_it(rig: Rig) -> None:
    blocks = list(range(64))
    slots = rig.client.allocate_slots(64).tolist()
    for value in (1, 2, 3):
        torch.cuda._sleep(50_000_000)  # the fill begins long after the store was asked for
        for layer in rig.layers:
            layer.fill_(value)
        rig.copy(True, blocks, slots)
        for slot in slots:
            assert (
                np.frombuffer(rig.store.slot_view(slot), np.int8)[: LAYERS * PAGE] == value
            ).all()


def test_a_load_writes_after_what_was_computed_before_it(rig: Rig) -> None:
    blocks = list(range(64))
    slots = rig.client.allocate_slots(64).tolist()
    want = rig.content(blocks)
    rig.copy(True, blocks, slots)
    torch.cuda._sleep(50_000_000)
    for layer in rig.layers:
        layer.zero_()
    rig.copy(False, blocks, slots)
    assert (rig.content(blocks) == want).all()
