# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the rows of the SGLang adapter are measured with: SGLang's own host pool, keys and calls."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import hicache_on_cpu
import torch
from server_process import own_name, radix_server
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

from radixshmem import RadixClient
from radixshmem.integrations.sglang_hicache import RadixShmemStorage

__all__ = ["PAGE_TOKENS", "Controller", "host_pool", "page_keys", "radix_storage", "storage_config"]

PAGE_TOKENS = 16
_LAYERS = 16
_HEAD_DIM = 64
_DTYPE = torch.bfloat16
_ROOT = HiCacheStorageExtraInfo()  # nothing before the pages of a call


def page_keys(seed: str, count: int) -> list[str]:
    """Hex digests, as SGLang's are."""
    return [hashlib.sha256(f"{seed}/{i}".encode()).hexdigest() for i in range(count)]


def host_pool(page_bytes: int, pages: int) -> MHATokenToKVPoolHost:
    """Page first: the K of a page is one piece, its V another. Filled with noise."""
    hicache_on_cpu.register()  # no GPU is told of its memory
    heads = page_bytes // (2 * _LAYERS * PAGE_TOKENS * _HEAD_DIM * _DTYPE.itemsize)
    layers = tuple(
        torch.zeros((PAGE_TOKENS, heads, _HEAD_DIM), dtype=_DTYPE) for _ in range(_LAYERS)
    )
    pointers = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64)
    pool = MHATokenToKVPoolHost(
        MHABufferInfo(
            buffers=KVBuffers(
                k=layers,
                v=layers,
                k_data_ptrs=pointers,
                v_data_ptrs=pointers,
                layout=KVBufferLayout.NHD,
            ),
            page_size=PAGE_TOKENS,
            head_num=heads,
            head_dim=_HEAD_DIM,
            v_head_dim=_HEAD_DIM,
            dtype=_DTYPE,
            device=torch.device("cpu"),
        ),
        host_to_device_ratio=1.0,
        host_size=0,
        page_size=PAGE_TOKENS,
        layout="page_first",
        device_capacity_tokens=PAGE_TOKENS,
        start_layer=0,
        end_layer=_LAYERS - 1,
        host_token_capacity=pages * PAGE_TOKENS,
    )
    if pool.size_per_token * PAGE_TOKENS != page_bytes:
        raise RuntimeError(f"a page of SGLang's pool has {pool.size_per_token * PAGE_TOKENS} bytes")
    pool.kv_buffer.view(torch.int16).random_()
    return pool


def storage_config(**extra: Any) -> HiCacheStorageConfig:
    """Of a server with one rank."""
    return HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=True,
        is_page_first_layout=True,
        model_name="bench",
        extra_config=extra,
    )


@contextlib.contextmanager
def radix_storage(pool: Any, data_bytes: int) -> Iterator[tuple[RadixShmemStorage, RadixClient]]:
    """The adapter, as SGLang makes it, on a radix-server of its own, and its client."""
    name = own_name("bench_sglang")
    with radix_server(name, "--data-bytes", str(data_bytes)):
        storage = RadixShmemStorage(storage_config(server_name=name))
        storage.register_mem_pool_host(pool)
        storage.on_host_pools_registered()
        try:
            assert storage._attachment.attached is not None
            client = storage._attachment.attached.connection.client
            if client is None:
                raise RuntimeError(f"the adapter did not attach to {name}")
            client.wait_ready(60.0)
            yield storage, client
        finally:
            storage.close()


class Controller:
    """SGLang's calls of a storage backend for the pages of one batch."""

    def __init__(self, storage: Any, pool: Any, *, zero_copy: bool) -> None:
        self._self: Any = SimpleNamespace(
            storage_backend=storage, storage_host_pool=pool, page_size=PAGE_TOKENS
        )
        kind = HiCacheController
        self._set = kind._page_set_zero_copy if zero_copy else kind._generic_page_set
        self._get = kind._page_get_zero_copy if zero_copy else kind._generic_page_get
        self._operation: Any = SimpleNamespace(request_id="bench", is_terminated=lambda: False)

    def set(self, keys: list[str], host_indices: torch.Tensor) -> None:
        """RuntimeError when SGLang would note a failure."""
        if not self._set(self._self, keys, host_indices, _ROOT):
            raise RuntimeError("SGLang could not store a batch of pages")

    def get(self, keys: list[str], host_indices: torch.Tensor) -> None:
        """RuntimeError when SGLang would go on without some of the pages."""
        got = self._get(self._self, self._operation, keys, host_indices, _ROOT)
        if got != len(keys):
            raise RuntimeError(f"SGLang got {got} of {len(keys)} pages")
