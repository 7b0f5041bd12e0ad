# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`RadixShmemOffloadingSpec`: makes the manager (scheduler) and the worker (each rank)."""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingMetricMetadata

from radixshmem import ComponentType, Geometry, RadixClient, ServerNotReady

from .groups import GroupMap, GroupShape, map_groups
from .manager import RadixShmemManager
from .metrics import definitions
from .settings import GROUPS_KEY, IDENTITY_KEY, ROLE_KEY, Settings
from .worker import RadixShmemWorker

__all__ = ["RadixShmemOffloadingSpec"]

_RETRY_S = 0.2


class RadixShmemOffloadingSpec(base.OffloadingSpec):
    """vLLM's OffloadingSpec for a radix-server."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._settings = Settings.of(self.extra_config)
        if self.blocks_per_chunk != 1:
            raise ValueError(
                f"blocks_per_chunk is {self.blocks_per_chunk}; radixshmem stores single blocks: "
                "leave blocks_per_chunk and block_size out of kv_connector_extra_config"
            )
        if len(set(self.tokens_per_block)) != 1:
            raise ValueError(
                f"KV cache groups have blocks of {self.tokens_per_block} tokens; radixshmem needs "
                "the same number in all groups"
            )
        if config.parallel.pp_size != 1:
            raise ValueError(
                f"pipeline_parallel_size is {config.parallel.pp_size}; this version of radixshmem "
                "offloads models of one pipeline stage"
            )
        shapes = self.extra_config.get(GROUPS_KEY)
        if shapes is None:
            raise ValueError(
                "OffloadingConnector does not tell its spec the kinds of KV cache groups: use "
                '"kv_connector": "RadixShmemConnector"'
            )
        self.replicated_layout = bool(getattr(config, "replicated_layout", False))
        copies = 1 if self.replicated_layout else config.parallel.world_size
        self._groups: GroupMap = map_groups(
            [GroupShape(kind, component, size, window) for component, size, window, kind in shapes],
            copies,
        )

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        return super().build_metric_definitions(extra_config) | definitions()

    def get_manager(self) -> RadixShmemManager:
        block_tokens = self.tokens_per_block[0]
        loads, stores = self.extra_config.get(ROLE_KEY, (True, True))
        return RadixShmemManager(
            self._connect(),
            self._groups,
            block_tokens,
            block_tokens // self.tokens_per_hash,
            self._settings.pull_timeout_ms,
            loads=loads,
            stores=stores,
            events=self.kv_events_config.enable_kv_cache_events,
        )

    def get_worker(self, kv_caches: CanonicalKVCaches) -> RadixShmemWorker:
        return RadixShmemWorker(
            self._connect(),
            self._groups,
            self.config.parallel.rank,
            kv_caches,
            self._settings.transfer_timeout_s,
        )

    def _geometry(self) -> Geometry:
        groups = self._groups
        return Geometry(
            self.tokens_per_block[0],
            groups.slot_bytes(ComponentType.FULL),
            swa_slot_bytes=groups.slot_bytes(ComponentType.SWA),
            swa_window_blocks=groups.window_blocks,
            mamba_slot_bytes=groups.slot_bytes(ComponentType.MAMBA),
            fingerprint=self.extra_config[IDENTITY_KEY],
        )

    def _connect(self) -> RadixClient:
        """One client per process; the processes of this engine are one group."""
        deadline = time.monotonic() + self._settings.wait_server_s
        while True:
            try:
                return RadixClient(
                    self._settings.server_name,
                    self._geometry(),
                    endpoint=self._settings.endpoint,
                    group=self.config.engine_id,
                )
            except ServerNotReady:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY_S)
