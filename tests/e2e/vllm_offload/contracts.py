# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Configurations as vLLM makes them, for specs and identities without an engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from e2e.vllm_offload.engines import BLOCK
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
)
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)

from radixshmem import ComponentType
from radixshmem.integrations.vllm_offload.settings import GROUPS_KEY, IDENTITY_KEY

BLOCKS = 8  # of the KV caches made here

FULL = ("FullAttentionSpec", ComponentType.FULL, 0)
WINDOW = ("SlidingWindowSpec", ComponentType.SWA, 2 * BLOCK)
MAMBA = ("MambaSpec", ComponentType.MAMBA, 0)


def vllm_config(model: str, **options: Any) -> VllmConfig:
    """What an engine of these options would have."""
    return EngineArgs(
        model=model, skip_tokenizer_init=True, dtype="float32", block_size=BLOCK, **options
    ).create_engine_config()


def offloading_config(
    server: str,
    shapes: Sequence[tuple[str, int, int]] = (FULL,),
    *,
    bare: bool = False,
    extra: Mapping[str, Any] | None = None,
    engine_id: str = "engine",
    chunk_blocks: int = 1,
    layers: Sequence[Sequence[str]] | None = None,
    **changes: Any,
) -> OffloadingConfig:
    """`changes` are of OffloadingParallelConfig, or else of OffloadingConfig itself."""
    options: dict[str, Any] = {"server_name": server, "wait_server_s": 5}
    if not bare:
        options |= {GROUPS_KEY: [list(shape) for shape in shapes], IDENTITY_KEY: {"model": "tiny"}}
    parallel: dict[str, Any] = {
        "rank": 0,
        "tp_size": 1,
        "pp_size": 1,
        "pcp_size": 1,
        "dcp_size": 1,
        "data_parallel_index": 0,
        "data_parallel_size": 1,
        "data_parallel_rank_local": None,
        "is_parallelism_agnostic": False,
    }
    parallel |= {name: changes.pop(name) for name in list(changes) if name in parallel}
    parallel["world_size"] = parallel["tp_size"] * parallel["pp_size"] * parallel["pcp_size"]
    names = layers or [[f"layers.{i}"] for i in range(len(shapes))]
    config = OffloadingConfig(
        groups=tuple(
            OffloadingGroupConfig(tokens_per_block=BLOCK, layer_names=tuple(n), group_id=i)
            for i, n in enumerate(names)
        ),
        worker_kv_bytes_per_block=0,
        enable_kv_cache_events=False,
        extra_config=options | dict(extra or {}),
        engine_id=engine_id,
        model=OffloadingModelConfig("tiny", "float32"),
        cache=OffloadingCacheConfig(BLOCK, chunk_blocks),
        parallel=OffloadingParallelConfig(**parallel),
    )
    return dataclasses.replace(config, **changes)


def kv_caches(groups: Sequence[Sequence[int]], fill: int = 0) -> CanonicalKVCaches:
    """For each group the bytes of one block of each of its layers; every layer has its own."""
    tensors: list[CanonicalKVCacheTensor] = []
    refs: list[list[CanonicalKVCacheRef]] = []
    for sizes in groups:
        refs.append([])
        for size in sizes:
            refs[-1].append(CanonicalKVCacheRef(len(tensors), size))
            noise = torch.Generator().manual_seed(fill * 1000 + len(tensors))
            content = torch.randint(-128, 128, (BLOCKS, size), dtype=torch.int8, generator=noise)
            tensors.append(CanonicalKVCacheTensor(content if fill else content.zero_(), size))
    return CanonicalKVCaches(tensors, refs)
