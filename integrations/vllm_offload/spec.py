# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`RadixShmemOffloadingSpec`: makes the manager (scheduler) and the worker (each rank).

The workers come first: they exchange how many bytes each has, and give the server its geometry.
The scheduler then attaches to what is there.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from vllm.config import get_current_vllm_config_or_none
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingMetricMetadata

from radixshmem import ComponentType, Geometry, GeometryMismatch, RadixClient, ServerNotReady

from .bare import BareManager, BareWorker, require_bare_support
from .groups import GroupMap, GroupShape, map_groups
from .identity import attention_backends, disagreement, fingerprint, model_identity, slot_identity
from .log import tell_size
from .manager import RadixShmemManager
from .metrics import definitions
from .options import Settings
from .ranks import Host, RankReport, exchange_reports, require_one_host
from .settings import DRAFTS_KEY, GROUPS_KEY, IDENTITY_KEY, LONGEST_KEY, ROLE_KEY
from .worker import RadixShmemWorker

__all__ = ["RadixShmemOffloadingSpec"]

_RETRY_S = 0.2
_log = logging.getLogger("radixshmem.vllm")


class RadixShmemOffloadingSpec(base.OffloadingSpec):
    """vLLM's OffloadingSpec for a radix-server. Bare: without RadixShmemConnector; see bare.py."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        extra = self.extra_config
        self._settings = Settings.of(extra)
        self.offload_prompt_only = self._settings.offload_prompt_only
        self.replicated_layout = bool(getattr(config, "replicated_layout", False))
        self._refuse_layouts()
        self._bare = GROUPS_KEY not in extra
        if self._bare:
            require_bare_support(config)
        # A bare spec is not told the kind of its group; full attention holds for any.
        self._shapes = extra.get(GROUPS_KEY, [["unknown", ComponentType.FULL, 0]])
        if len(self._shapes) != len(config.groups):
            raise ValueError(
                f"vLLM offloads {len(config.groups)} of the {len(self._shapes)} KV cache groups of "
                "this model; radixshmem takes models whose groups are all kept for later requests"
            )
        self._groups = map_groups([GroupShape(*s) for s in self._shapes], self.tokens_per_block[0])
        self._known = slot_identity(config) | extra.get(IDENTITY_KEY, {})

    def _refuse_layouts(self) -> None:
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
        if getattr(self.config, "canonical_layout", False):
            raise ValueError(
                "canonical_layout is set; radixshmem stores the bytes of each rank as they are: "
                "leave it out of kv_connector_extra_config"
            )

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        return super().build_metric_definitions(extra_config) | definitions()

    # ------------------------------------------------------------ scheduler

    def get_manager(self) -> RadixShmemManager:
        block_tokens = self.tokens_per_block[0]
        loads, stores = self.extra_config.get(ROLE_KEY, (True, True))
        kind = BareManager if self._bare else RadixShmemManager
        return kind(
            self._attach(),
            self._groups,
            block_tokens,
            1 if self._bare else block_tokens // self.tokens_per_hash,
            self._settings.pull_timeout_ms,
            # One in each stage of a pipeline, and one that is planned meanwhile.
            steps_in_flight=self.config.parallel.pp_size + 1,
            loads=loads,
            stores=stores,
            events=self.kv_events_config.enable_kv_cache_events,
        )

    def _attach(self) -> RadixClient:
        """A client of the server that the workers have attached to."""
        client = self._connect(None)
        try:
            client.wait_ready(self._settings.wait_server_s)
            geometry = Geometry.from_dict(client.geometry or {})
            if names := disagreement(self._known, geometry.fingerprint):
                raise GeometryMismatch(
                    f"{_other_model(client.name, names)}\n"
                    f"engine's fingerprint: {self._known}\n"
                    f"server's fingerprint: {geometry.fingerprint}"
                )
            client.configure(geometry)  # what this client asks of a server that comes back
            self._require_slots(client)
            longest = int(self.extra_config.get(LONGEST_KEY, 0))
            tell_size(client, self.tokens_per_block[0], longest)
        except BaseException:
            client.close()
            raise
        return client

    # ------------------------------------------------------------ workers

    def get_worker(self, kv_caches: CanonicalKVCaches) -> RadixShmemWorker:
        parallel = self.config.parallel
        mine = self._report(kv_caches)
        reports = exchange_reports(mine, parallel.world_size)
        require_one_host([(f"rank {report.rank}", report.host) for report in reports])
        ranks = [report.group_bytes for report in reports]
        if self.replicated_layout:
            if len(set(ranks)) != 1:
                raise ValueError(
                    f"vLLM says that all ranks have the same KV cache, and their groups have "
                    f"{ranks} bytes per block"
                )
            groups = self._groups.placed(ranks[:1], 0)
        else:
            groups = self._groups.placed(ranks, parallel.rank)
        client = self._give(self._geometry(groups, fingerprint(*self._identity(), reports)))
        try:
            self._require_slots(client)
            kind = BareWorker if self._bare else RadixShmemWorker
            timeout_s = self._settings.transfer_timeout_s
            return kind(client, groups, parallel.rank, kv_caches, timeout_s)
        except BaseException:
            client.close()
            raise

    def _give(self, geometry: Geometry) -> RadixClient:
        """A client of the server, which has this geometry or gets it."""
        try:
            return self._connect(geometry)
        except GeometryMismatch as error:
            with self._connect(None) as client:
                theirs = Geometry.from_dict(client.geometry or {}).fingerprint
            names = disagreement(json.loads(geometry.fingerprint), theirs)
            raise GeometryMismatch(f"{_other_model(client.name, names)}\n{error}") from error

    def _report(self, kv_caches: CanonicalKVCaches) -> RankReport:
        facts = [f"draft group {index}" for index in self.extra_config.get(DRAFTS_KEY, ())]
        if (vllm_config := get_current_vllm_config_or_none()) is not None:
            facts += [f"attention {name}" for name in attention_backends(vllm_config)]
        return RankReport(
            self.config.parallel.rank,
            Host.here(),
            tuple(sum(r.page_size_bytes for r in refs) for refs in kv_caches.group_data_refs),
            tuple(tuple(group.layer_names) for group in self.config.groups),
            tuple(facts),
        )

    def _identity(self) -> tuple[dict[str, Any], list[list[Any]]]:
        """What is known beforehand, and of each group its pool and window."""
        known = self._known
        if self._bare:
            vllm_config = get_current_vllm_config_or_none()
            if vllm_config is None:
                raise ValueError(
                    "this vLLM does not show its configuration to the workers of "
                    'OffloadingConnector: use "kv_connector": "RadixShmemConnector"'
                )
            known = known | model_identity(vllm_config)
        return known, [shape[1:] for shape in self._shapes]

    def _geometry(self, groups: GroupMap, identity: str) -> Geometry:
        return Geometry(
            self.tokens_per_block[0],
            groups.slot_bytes(ComponentType.FULL),
            swa_slot_bytes=groups.slot_bytes(ComponentType.SWA),
            swa_window_blocks=groups.window_blocks,
            mamba_slot_bytes=groups.slot_bytes(ComponentType.MAMBA),
            fingerprint=identity,
        )

    # ------------------------------------------------------------ both

    def _connect(self, geometry: Geometry | None) -> RadixClient:
        """One client per process; the processes of this engine are one group."""
        settings = self._settings

        def connect() -> RadixClient:
            return RadixClient(
                settings.server_name,
                geometry,
                endpoint=settings.endpoint,
                group=self.config.engine_id,
            )

        return _until_answered(connect, settings)

    def _require_slots(self, client: RadixClient) -> None:
        if client.store is None:
            raise ValueError(
                f"the radix-server {client.name} holds an index only, no slots: start one with "
                "--data-bytes and another --name, and give that as 'server_name'"
            )


def _other_model(server: str, names: list[str]) -> str:
    return (
        f"{server} serves another model or layout than this engine has; they disagree on {names}: "
        "start a radix-server of another --name for this one"
    )


def _until_answered(connect: Callable[[], RadixClient], settings: Settings) -> RadixClient:
    deadline = time.monotonic() + settings.wait_server_s
    told = False
    while True:
        try:
            return connect()
        except (ServerNotReady, TimeoutError) as error:  # a stopped server accepts, and is silent
            if time.monotonic() >= deadline:
                raise ServerNotReady(
                    f"no radix-server {settings.server_name} on host {Host.here().name!r} after "
                    f"{settings.wait_server_s:g} s: {error}\nStart it there; the scheduler and all "
                    "ranks of an engine use one server, of their host"
                ) from error
            if not told:
                _log.warning("radixshmem: waits %g s for it: %s", settings.wait_server_s, error)
                told = True
            time.sleep(_RETRY_S)
