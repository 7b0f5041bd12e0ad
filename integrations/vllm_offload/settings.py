# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Options of `kv_connector_extra_config`, and what the connector adds to them for the spec.

| option | default | meaning |
|---|---|---|
| `server_name` | required | name of the radix-server, as given to its `--name` |
| `endpoint` | | its socket, when it is not at the usual place |
| `wait_server_s` | 30 | how long to wait for the server at the start |
| `pull_timeout_ms` | 5000 | deadline of a fetch from another node |
| `offload_prompt_only` | false | do not store blocks that were generated |
| `transfer_timeout_s` | 60 | a copy between GPU and slots that takes longer has failed |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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

__all__ = ["DRAFTS_KEY", "GROUPS_KEY", "IDENTITY_KEY", "ROLE_KEY", "Settings", "prepare"]

GROUPS_KEY = "radixshmem_groups"  # [[kind, component, window tokens], ...]
DRAFTS_KEY = "radixshmem_draft_groups"  # indexes of those of draft models on this rank
IDENTITY_KEY = "radixshmem_identity"
ROLE_KEY = "radixshmem_role"  # [loads, stores]
_SPEC_MODULE = "radixshmem.integrations.vllm_offload"
_SPEC_NAME = "RadixShmemOffloadingSpec"


@dataclass(frozen=True, slots=True)
class Settings:
    server_name: str
    endpoint: str | None
    wait_server_s: float
    pull_timeout_ms: int
    transfer_timeout_s: float

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Settings:
        name = extra.get("server_name")
        if not name:
            raise ValueError(
                "kv_connector_extra_config lacks 'server_name': the --name of the radix-server "
                'on this node, such as "/kv_cache"'
            )
        return cls(
            str(name),
            extra.get("endpoint"),
            float(extra.get("wait_server_s", 30)),
            int(extra.get("pull_timeout_ms", 5000)),
            float(extra.get("transfer_timeout_s", 60)),
        )


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
