# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the connector adds to `kv_connector_extra_config` for the spec, and where."""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from radixshmem import ComponentType

from .identity import model_identity
from .options import PRIVATE

__all__ = ["DRAFTS_KEY", "GROUPS_KEY", "IDENTITY_KEY", "LONGEST_KEY", "ROLE_KEY", "prepare"]

GROUPS_KEY = PRIVATE + "groups"  # [[kind, component, window tokens], ...]
DRAFTS_KEY = PRIVATE + "draft_groups"  # indexes of those of draft models on this rank
IDENTITY_KEY = PRIVATE + "identity"
LONGEST_KEY = PRIVATE + "longest"  # tokens of the longest request
ROLE_KEY = PRIVATE + "role"  # [loads, stores]
_SPEC_MODULE = "radixshmem.integrations.vllm_offload"
_SPEC_NAME = "RadixShmemOffloadingSpec"


def prepare(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None) -> None:
    """Name our spec to vLLM, and give it what it cannot see itself: kinds of groups, identity."""
    transfer = vllm_config.kv_transfer_config
    assert transfer is not None  # vLLM makes a connector only for one
    extra = transfer.kv_connector_extra_config
    extra.setdefault("spec_name", _SPEC_NAME)
    extra.setdefault("spec_module_path", _SPEC_MODULE)
    if kv_cache_config is None:
        return
    extra.setdefault("self_describing_kv_events", True)  # if there are events at all
    extra[ROLE_KEY] = [transfer.is_kv_consumer, transfer.is_kv_producer]
    # A load that fails inside the step could not be reported in time: all loads are asynchronous.
    extra["sync_load_budget_bytes"] = 0
    transfer.kv_load_failure_policy = "recompute"
    groups = kv_cache_config.kv_cache_groups
    extra[GROUPS_KEY] = [[*_shape(group.kv_cache_spec)] for group in groups]
    extra[DRAFTS_KEY] = [i for i, group in enumerate(groups) if group.is_eagle_group]
    extra[LONGEST_KEY] = vllm_config.model_config.max_model_len
    extra[IDENTITY_KEY] = model_identity(vllm_config)


def _shape(spec: KVCacheSpec) -> tuple[str, int, int]:
    """The fields of a GroupShape."""
    kind = type(spec).__name__
    if isinstance(spec, UniformTypeKVCacheSpecs):
        inner = {_shape(each)[1:] for each in spec.kv_cache_specs.values()}
        component, window = inner.pop() if len(inner) == 1 else (-1, 0)
        return kind, component, window
    if isinstance(spec, SlidingWindowSpec):
        extra = getattr(spec, "extra_retained_tokens", 0)
        reach = max(spec.sliding_window, spec.sliding_window - 1 + extra)
        return kind, ComponentType.SWA, reach
    if isinstance(spec, FullAttentionSpec):
        return kind, ComponentType.FULL, 0
    if isinstance(spec, MambaSpec):
        return kind, ComponentType.MAMBA, 0
    return kind, -1, 0
