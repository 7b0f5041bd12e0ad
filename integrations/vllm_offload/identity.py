# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the bytes of a slot mean: the fingerprint that all engines of one server share.

Two engines may use each other's blocks only if everything here agrees. Not part of it, since it
changes no byte: the engine's id, the data-parallel rank, lengths and numbers of blocks.

The workers of an engine know all of it and form the fingerprint. The scheduler does not see the
layers of other ranks; it compares what it knows (`disagreement`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import vllm
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils

from .ranks import RankReport

__all__ = ["attention_backends", "disagreement", "fingerprint", "model_identity", "slot_identity"]

FORMAT = 1  # of the layout of a slot; raise when it changes


def model_identity(vllm_config: VllmConfig) -> dict[str, Any]:
    """What vLLM's whole configuration tells. ValueError for hashes that no other process makes."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    speculative: Any = vllm_config.speculative_config
    draft = getattr(speculative, "draft_model_config", None)
    return {
        "model": model.model,
        "revision": model.revision,
        "overrides": repr(model.hf_overrides),
        "quantization": model.quantization,
        "dtype": str(model.dtype),
        "cache_dtype": cache.cache_dtype,
        "kv_heads": model.get_total_num_kv_heads(),
        "second_runner": bool(getattr(vllm_config, "use_v2_model_runner", False)),
        "speculative": [
            getattr(speculative, "method", None),
            getattr(draft, "model", None),
            getattr(draft, "revision", None),
        ],
        "hash": _hash_identity(cache.prefix_caching_hash_algo),
    }


def slot_identity(config: Any) -> dict[str, Any]:
    """What vLLM's OffloadingConfig tells, which every spec has."""
    parallel, cache = config.parallel, config.cache
    return {
        "format": FORMAT,
        "vllm": ".".join(vllm.__version__.split(".")[:2]),
        "device": current_platform.device_type,
        "served": [config.model.name, config.model.dtype],
        "hash_tokens": cache.tokens_per_hash,
        "block_tokens": [group.tokens_per_block for group in config.groups],
        "chunk_blocks": cache.blocks_per_chunk,
        "layout": getattr(config, "kv_cache_layout", None),
        "canonical": bool(getattr(config, "canonical_layout", False)),
        "replicated": bool(getattr(config, "replicated_layout", False)),
        "parallel": {
            "tensor": parallel.tp_size,
            "pipeline": parallel.pp_size,
            "prefill_context": parallel.pcp_size,
            "decode_context": parallel.dcp_size,
            "world": parallel.world_size,
        },
    }


def fingerprint(
    known: Mapping[str, Any], groups: Sequence[Sequence[Any]], reports: Sequence[RankReport]
) -> str:
    """Canonical JSON of what is known beforehand, of the groups, and of what the ranks report."""
    layers = [
        list(dict.fromkeys(name for report in reports for name in report.layers[group]))
        for group in range(len(groups))
    ]
    return json.dumps(
        {
            **known,
            "groups": [list(group) for group in groups],
            "layers": layers,
            "bytes": [list(report.group_bytes) for report in reports],
            "facts": sorted({fact for report in reports for fact in report.facts}),
        },
        sort_keys=True,
        separators=(",", ":"),
    )


def disagreement(known: Mapping[str, Any], server: str) -> list[str]:
    """What a fingerprint says otherwise than is known here: names of its parts."""
    try:
        there = json.loads(server)
    except ValueError:
        there = None
    if not isinstance(there, dict):
        return ["format"]
    return [name for name, value in known.items() if there.get(name) != value]


def attention_backends(vllm_config: VllmConfig) -> list[str]:
    """Of the layers of this process, which has some after it loaded the model."""
    layers = vllm_config.compilation_config.static_forward_context.values()
    backends: list[Any] = [getattr(layer, "attn_backend", None) for layer in layers]
    return sorted({backend.get_name() for backend in backends if hasattr(backend, "get_name")})


def _hash_identity(algorithm: str) -> list[str]:
    """How vLLM chains block hashes. The seed decides whether processes agree on them."""
    if algorithm.startswith("xxhash") and "PYTHONHASHSEED" not in os.environ:
        raise ValueError(
            f"prefix_caching_hash_algo={algorithm!r} has a random seed in each process, so no "
            "other process finds what this one stores: set PYTHONHASHSEED to the same number for "
            "all engines, or use the default sha256"
        )
    return [algorithm, _hash_seed()]


def _hash_seed() -> str:
    """The seed of the first hash: the same in the scheduler and in workers, which hash nothing."""
    return os.environ.get("PYTHONHASHSEED", kv_cache_utils.DEFAULT_NONE_HASH_SEED)
