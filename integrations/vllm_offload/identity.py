# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the bytes of a slot mean: the fingerprint that all engines of one server share.

Two engines may use each other's blocks only if everything here agrees. Not part of it, since it
changes no byte: the engine's id, the data-parallel rank, lengths and numbers of blocks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import vllm
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_utils import get_none_hash_seed

from .groups import Group

__all__ = ["fingerprint"]

FORMAT = 1  # of the layout of a slot; raise when it changes


def fingerprint(
    vllm_config: VllmConfig, groups: Sequence[Group], window_blocks: int, layers: Sequence[Any]
) -> str:
    """Canonical JSON. ValueError for hashes that no other process can make."""
    model, cache, parallel = (
        vllm_config.model_config,
        vllm_config.cache_config,
        vllm_config.parallel_config,
    )
    return json.dumps(
        {
            "format": FORMAT,
            "vllm": ".".join(vllm.__version__.split(".")[:2]),
            "device": current_platform.device_type,
            "attention": str(getattr(vllm_config.attention_config, "backend", None)),
            "model": model.model,
            "revision": model.revision,
            "overrides": repr(model.hf_overrides),
            "quantization": model.quantization,
            "dtype": str(model.dtype),
            "cache_dtype": cache.cache_dtype,
            "block_tokens": cache.block_size,
            "layout": getattr(cache, "kv_cache_layout", None),
            "groups": [[group.component, group.bytes, group.offset] for group in groups],
            "window_blocks": window_blocks,
            "layers": [list(names) for names in layers],
            "ranks": [
                parallel.tensor_parallel_size,
                parallel.pipeline_parallel_size,
                getattr(parallel, "prefill_context_parallel_size", 1),
                getattr(parallel, "decode_context_parallel_size", 1),
            ],
            "kv_heads": model.get_total_num_kv_heads(),
            "speculative": repr(getattr(vllm_config.speculative_config, "method", None)),
            "hash": _hash_identity(cache.prefix_caching_hash_algo),
        },
        sort_keys=True,
        separators=(",", ":"),
    )


def _hash_identity(algorithm: str) -> list[str]:
    """How vLLM chains block hashes. The seed decides whether processes agree on them."""
    if algorithm.startswith("xxhash") and "PYTHONHASHSEED" not in os.environ:
        raise ValueError(
            f"prefix_caching_hash_algo={algorithm!r} has a random seed in each process, so no "
            "other process finds what this one stores: set PYTHONHASHSEED to the same number for "
            "all engines, or use the default sha256"
        )
    return [algorithm, str(get_none_hash_seed())]
