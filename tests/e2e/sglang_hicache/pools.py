# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""SGLang's real host pools on the CPU, of few and small pages, which tests fill themselves."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost, make_dsa_indexer_pool_decl
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.runtime_context import get_parallel

PAGE = 64
"""Tokens of a page; SGLang has no indexer of smaller ones."""
PAGES = 512
"""Pages of a host pool."""
LAYERS = 2

_DEVICE_TOKENS = PAGE  # device pools are there for their geometry alone
_BUDGET_BYTES = 1 << 28


@dataclasses.dataclass(frozen=True)
class Sidecar:
    """How SGLang hands a pool beside KV over."""

    name: PoolName
    window_pages: int = 0  # of a trailing pool
    indices_from: PoolName | None = None

    @property
    def policy(self) -> PoolHitPolicy:
        return PoolHitPolicy.TRAILING_PAGES if self.window_pages else PoolHitPolicy.ALL_PAGES


SWA = Sidecar(PoolName.SWA, window_pages=3)
MAMBA = Sidecar(PoolName.MAMBA, window_pages=1)
DRAFT = Sidecar(PoolName.DRAFT, indices_from=PoolName.KV)
INDEXER = Sidecar(PoolName.INDEXER, indices_from=PoolName.KV)
DRAFT_SWA = Sidecar(PoolName.DRAFT_SWA, window_pages=3, indices_from=PoolName.SWA)

TRAILING = pytest.mark.parametrize(
    "sidecars",
    [(SWA,), (MAMBA,), (SWA, MAMBA), (DRAFT, SWA)],
    ids=["swa", "mamba", "swa-mamba", "draft-swa"],
)
"""Each of these beside the KV."""


def ends(sidecars: tuple[Sidecar, ...]) -> dict[PoolName, int]:
    """How many pages of each trailing pool come with a long enough hit."""
    return {each.name: each.window_pages for each in sidecars if each.window_pages}


def host_group(*sidecars: Sidecar, layout: str = "page_first", kind: str = "mha") -> HostPoolGroup:
    """KV, and what stands beside it. `kind`: mha, mla or dsa."""
    with host_memory_budget_scope(_BUDGET_BYTES), parallel():
        device, kv = _kv(kind, layout)
        entries = [_entry(PoolName.KV, kv, device)]
        for sidecar in sidecars:
            pool = _sidecar_pool(sidecar.name, layout, device, kv)
            entries.append(_entry(sidecar.name, pool, device))
    return HostPoolGroup(entries)


def late_entry(group: HostPoolGroup, sidecar: Sidecar) -> PoolEntry:
    """A pool that SGLang names after it has attached a storage, as it does for draft models."""
    kv = group.anchor_entry
    with host_memory_budget_scope(_BUDGET_BYTES), parallel():
        pool = _sidecar_pool(sidecar.name, kv.host_pool.layout, kv.device_pool, kv.host_pool)
    return _entry(sidecar.name, pool, kv.device_pool)


def parallel(tp: tuple[int, int] = (0, 1), pp: tuple[int, int] = (0, 1)) -> Any:
    """The ranks that SGLang sees inside of this."""
    return get_parallel().override(
        tp_rank=tp[0],
        tp_size=tp[1],
        pp_rank=pp[0],
        pp_size=pp[1],
        attn_dcp_rank=0,
        attn_dcp_size=1,
    )


def _entry(name: PoolName, host: Any, device: Any) -> PoolEntry:
    return PoolEntry(
        name,
        host,
        device,
        lambda layer: layer,
        is_primary_index_anchor=name == PoolName.KV,
    )


def _kv(kind: str, layout: str) -> tuple[Any, Any]:
    if kind == "mha":
        device = _mha_device(heads=2, head_dim=2)
        return device, _mha(device, layout)
    if kind == "mla":
        device = MLATokenToKVPool(
            _DEVICE_TOKENS, PAGE, torch.float32, 8, 4, LAYERS, "cpu", enable_memory_saver=False
        )
    else:
        device = DSATokenToKVPool(
            _DEVICE_TOKENS,
            PAGE,
            kv_lora_rank=8,
            dtype=torch.float32,
            qk_rope_head_dim=4,
            layer_num=LAYERS,
            device="cpu",
            index_head_dim=128,
            enable_memory_saver=False,
            kv_cache_dim=12,
        )
    return device, MLATokenToKVPoolHost(
        device.get_device_pool_infos()[0].buffer_info,
        layout=layout,
        target_layer_num=LAYERS,
        override_kv_cache_dim=device.kv_cache_dim,
        **_sizes(),
    )


def _mha_device(heads: int, head_dim: int) -> Any:
    return MHATokenToKVPool(
        _DEVICE_TOKENS,
        PAGE,
        torch.float32,
        heads,
        head_dim,
        LAYERS,
        "cpu",
        enable_memory_saver=False,
    )


def _mha(device: Any, layout: str, label: str = "kv") -> Any:
    info = device.get_device_pool_infos()[0].buffer_info
    return get_mha_host_pool_cls(info)(info, layout=layout, pool_label=label, **_sizes())


def _sizes() -> dict[str, Any]:
    return {
        "host_to_device_ratio": 1.0,
        "host_size": 0,
        "page_size": PAGE,
        "pin_memory": False,
        "device_capacity_tokens": _DEVICE_TOKENS,
        "host_token_capacity": PAGES * PAGE,
        "start_layer": 0,
        "end_layer": LAYERS,
    }


def _sidecar_pool(name: PoolName, layout: str, device: Any, kv: Any) -> Any:
    if name == PoolName.MAMBA:
        return _mamba()
    if name == PoolName.INDEXER:
        decl = make_dsa_indexer_pool_decl(device)
        return DSAIndexerPoolHost(decl, kv, pin_memory=False)
    head_dim = {PoolName.SWA: 3, PoolName.DRAFT: 2}.get(name, 1)
    return _mha(_mha_device(1, head_dim), layout, label=str(name))


def _mamba() -> Any:
    info = MambaStateBufferInfo(
        temporal=torch.zeros(LAYERS, 2, 3, 5),
        conv=(torch.zeros(LAYERS, 2, 7), torch.zeros(LAYERS, 2, 2)),
    )
    return MambaPoolHost(
        info, PAGES / 2, 0, device_capacity=2, pin_memory=False, layout="page_first"
    )


def fill(pool: Any, index: int, key: str, rank: int = 0) -> None:
    """Make the page at `index` that of `key`: another for each pool, key and rank."""
    pool.set_from_flat_data_page(index, expected(pool, key, rank))


def blank(pool: Any, indices: torch.Tensor) -> None:
    for index in indices[:: pool.page_size].tolist():
        pool.set_from_flat_data_page(index, pool.get_dummy_flat_data_page())


def expected(pool: Any, key: str, rank: int = 0) -> torch.Tensor:
    page = pool.get_dummy_flat_data_page()
    name = f"{type(pool).__name__}{getattr(pool, 'pool_label', '')}{key}{rank}"
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "little")
    noise = torch.Generator().manual_seed(seed)
    return torch.randint(1, 128, page.shape, generator=noise).to(page.dtype)


def holds(pool: Any, index: int, key: str, rank: int = 0) -> bool:
    return bool(torch.equal(pool.get_data_page(index), expected(pool, key, rank)))
