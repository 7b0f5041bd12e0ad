# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the bytes of a page mean, and whose they are.

All engines of one server agree on the fingerprint. Ranks are no part of it: pages of other ranks
are other pages, since each rank's keys are folded with a salt of its own. SGLang's keys already
contain the tokens, LoRA, extra_key and cache_salt.
"""

from __future__ import annotations

import json
from typing import Any

from radixshmem import ComponentType, Geometry
from radixshmem_core._core import hash_bytes

from .engine import argument
from .options import Settings
from .pools import PageParts

__all__ = ["geometry", "rank_salt"]

FORMAT = 1  # of the layout of a slot; raise when it changes
_SHAPE = (  # of a host pool, as far as it has them
    "dtype",
    "layout",
    "page_size",
    "layer_num",
    "head_num",
    "head_dim",
    "v_head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "temporal_dtype",
    "conv_dtype",
    "dcp_size",
)


def rank_salt(config: Any) -> int:
    """What the keys of this rank are folded with: uint64, 0 for the first one.

    Where all TP ranks have the same KV (MLA) they have the same salt, unless DCP shards it.
    """
    tensor = getattr(config, "dcp_rank", 0) if config.is_mla_model else config.tp_rank
    ranks = (tensor, config.pp_rank, config.attn_cp_rank)
    if not any(ranks):
        return 0
    return hash_bytes(":".join(map(str, ranks)).encode())


def geometry(config: Any, parts: PageParts, settings: Settings, window_pages: int) -> Geometry:
    """Slots for these parts; `window_pages`: of the model's sliding window, 0 without one."""
    full, swa, mamba = (parts.slot_bytes(component) for component in ComponentType)
    return Geometry(
        parts.full[-1].pool.page_size,
        full,
        swa_slot_bytes=swa,
        swa_window_blocks=window_pages if swa else 0,
        mamba_slot_bytes=mamba,
        fingerprint=_fingerprint(config, parts, settings),
    )


def _fingerprint(config: Any, parts: PageParts, settings: Settings) -> str:
    """Canonical JSON."""
    pools = {
        part.name: {
            "kind": type(part.pool).__name__,
            "bytes": part.sizes.tolist(),
            "shape": {n: _plain(getattr(part.pool, n)) for n in _SHAPE if hasattr(part.pool, n)},
        }
        for part in (*parts.full, parts.swa, parts.mamba)
        if part is not None
    }
    return json.dumps(
        {
            "format": FORMAT,
            "engine": "sglang",
            "model": config.model_name,
            "revision": settings.revision or argument("revision"),
            "overrides": argument("json_model_override_args"),
            "quantization": argument("quantization"),
            "cache_dtype": argument("kv_cache_dtype"),  # all kinds of fp8 are uint8 in a pool
            "cache_scales": argument("quantization_param_path"),
            "draft": _draft(),
            "pools": pools,
            "parallel": {
                "tensor": config.tp_size,
                "pipeline": config.pp_size,
                "context": config.attn_cp_size,
                "decode_context": getattr(config, "dcp_size", 1),
            },
        },
        sort_keys=True,
        separators=(",", ":"),
    )


def _draft() -> list[object] | None:
    """The model that fills the pools of drafts; None for the model itself, or without one."""
    path = argument("speculative_draft_model_path")
    if path in (None, argument("model_path")):
        return None
    return [path, argument("speculative_draft_model_revision")]


def _plain(value: object) -> object:
    return value if isinstance(value, int | str | None) else str(value)
