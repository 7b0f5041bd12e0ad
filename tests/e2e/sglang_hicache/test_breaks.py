# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Ways to wrong bytes and lost pages that were found by trying, on host pools of a few bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolTransfer,
)
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool

from radixshmem import RadixClient, fold_page_keys
from radixshmem.integrations.sglang_hicache import RadixShmemStorage, identity
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

PAGE = 4
PAGE_BYTES = 64
ROOT = HiCacheStorageExtraInfo(prefix_keys=[])


class Pool:
    """A page is one piece of memory."""

    layout = "page_first"
    dtype = torch.uint8

    def __init__(self, page_size: int = PAGE) -> None:
        self.page_size = page_size
        self.pages = torch.zeros(64, PAGE_BYTES, dtype=torch.uint8)

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        firsts = indices.tolist()[:: self.page_size]
        base = self.pages.data_ptr()
        pointers = [base + first // self.page_size * PAGE_BYTES for first in firsts]
        return pointers, [PAGE_BYTES] * len(pointers)


def indices(pages: int, page_size: int = PAGE) -> torch.Tensor:
    return torch.arange(pages * page_size)


def chain(seed: str, count: int) -> list[str]:
    return [hashlib.sha256(f"{seed}/{i}".encode()).hexdigest() for i in range(count)]


def make(server: str, **pools: Any) -> RadixShmemStorage:
    config = HiCacheStorageConfig(
        0, 1, 0, 1, 0, 1, False, False, True, "m", extra_config={"server_name": server}
    )
    storage = RadixShmemStorage(config)
    storage.register_mem_pool_host(pools["kv"])
    for name, pool in pools.items():
        storage.register_mem_host_pool_v2(pool, name)
    storage.on_host_pools_registered()
    return storage


def set_sidecar(storage: RadixShmemStorage, name: str, keys: Sequence[str]) -> list[bool]:
    transfer = PoolTransfer(name, keys=list(keys), host_indices=indices(len(keys)))
    return storage.batch_set_v2([transfer], ROOT)[name]


def test_a_page_without_kv_is_whole_when_all_its_sidecars_came(region_name: str) -> None:
    keys = chain("a", 5)
    with RadixServer(ServerConfig(region_name, data_bytes="1M")):
        sidecars = {"deepseek_v4_c4": Pool(), "deepseek_v4_c128": Pool()}
        storage = make(region_name, kv=LogicalHostPool(256, PAGE), **sidecars)
        assert all(set_sidecar(storage, "deepseek_v4_c4", keys))
        assert storage.batch_set_v1(keys, indices(5), ROOT) == [False] * 5
        assert all(set_sidecar(storage, "deepseek_v4_c128", keys))
        assert storage.batch_set_v1(keys, indices(5), ROOT) == [True] * 5
        assert storage.batch_exists(keys, ROOT) == 5
        storage.close()


def test_a_slot_that_was_to_be_mended_is_not_written_once_it_is_another_page(
    region_name: str,
) -> None:
    keys = chain("a", 3)
    with RadixServer(ServerConfig(region_name, data_bytes="64K", slot_align=64)):
        storage = make(region_name, kv=Pool(), draft=Pool())
        set_sidecar(storage, "draft", keys)
        assert all(storage.batch_set_v1(keys, indices(3), ROOT))
        with RadixClient(region_name) as other:
            path = fold_page_keys(keys)
            slot = int(other.query(path).full_slots[0])
            other.slot_view(slot)[2 * PAGE_BYTES : 2 * PAGE_BYTES + 8] = bytes(8)
            assert set_sidecar(storage, "draft", keys)[0]  # waits for the KV to mend it
            other.reset()
            slots = other.allocate_slots(other.mempool_total())
            for each in slots:
                other.slot_view(int(each))[:PAGE_BYTES] = b"\x07" * PAGE_BYTES
            others = np.arange(1, len(slots) + 1, dtype=np.uint64)
            other.insert(others, slots)
            set_sidecar(storage, "draft", keys)
            kept = other.query(others)
            for each in kept.full_slots:
                assert bytes(other.slot_view(int(each))[:PAGE_BYTES]) == b"\x07" * PAGE_BYTES
        storage.close()


def test_one_state_may_wait_in_a_pool_of_one_slot(region_name: str) -> None:
    keys = chain("a", 4)
    config = ServerConfig(region_name, data_bytes="64K", slot_align=64, mamba_ratio=0.002)
    with RadixServer(config):
        storage = make(region_name, kv=Pool(), mamba=Pool(page_size=1))
        transfer = PoolTransfer(
            "mamba",
            keys=keys[-1:],
            host_indices=torch.tensor([3]),
            hit_policy=PoolHitPolicy.TRAILING_PAGES,
        )
        before = HiCacheStorageExtraInfo(prefix_keys=keys[:-1])
        assert storage.batch_set_v2([transfer], before)["mamba"] == [True]
        assert all(storage.batch_set_v1(keys, indices(4), ROOT))
        asked = PoolTransfer("mamba", keys=["?"], hit_policy=PoolHitPolicy.TRAILING_PAGES)
        assert storage.batch_exists_v2(keys, [asked], ROOT).restorable_prefix_pages == [4]
        storage.close()


@pytest.mark.parametrize(
    "option",
    [
        "revision",
        "json_model_override_args",
        "quantization",
        "kv_cache_dtype",
        "quantization_param_path",
        "speculative_draft_model_path",
    ],
)
def test_what_changes_the_bytes_of_a_page_changes_the_fingerprint(
    monkeypatch: pytest.MonkeyPatch, region_name: str, option: str
) -> None:
    with RadixServer(ServerConfig(region_name, data_bytes="1M")):
        make(region_name, kv=Pool()).close()
        make(region_name, kv=Pool()).close()
        known = identity.argument
        monkeypatch.setattr(
            identity, "argument", lambda name: "other" if name == option else known(name)
        )
        with pytest.raises(RuntimeError, match="other"):
            make(region_name, kv=Pool())
