# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`RadixShmemConnector`: vLLM's offloading connector with radixshmem behind it.

It gives the manager what the interface of managers leaves out: the whole path of a request, the
begin of a round of lookups, the end of a request, and transfers that failed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from vllm.config import VllmConfig, get_current_vllm_config_or_none
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from .manager import RadixShmemManager
from .ranks import Handshake, require_one_server
from .settings import prepare
from .transfer import WorkerMetadata
from .worker import RadixShmemWorker

__all__ = ["RadixShmemConnector", "require_names"]

_log = logging.getLogger("radixshmem.vllm")


def require_names(scheduler: object, worker: object) -> None:
    """What is used of vLLM's own parts of the connector, and no interface of it promises."""
    if scheduler is not None:
        if not hasattr(scheduler, "manager"):
            _log.warning("radixshmem: this vLLM hides the manager: nothing is stored or restored")
        if not hasattr(scheduler, "_req_status"):
            _log.warning("radixshmem: this vLLM hides its requests: do not use streaming input")
    if worker is not None and not hasattr(worker, "worker"):
        raise ValueError(
            "this vLLM hides the worker from its connector, so a load that failed would go "
            "unnoticed; use a version that docs/integrations.md names"
        )


class RadixShmemConnector(OffloadingConnector):
    """Offloads to and restores from the shared cache of the node. See docs/integrations.md."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        prepare(vllm_config, kv_cache_config)
        super().__init__(vllm_config, role, kv_cache_config)
        require_names(self.connector_scheduler, self.connector_worker)
        # MultiConnector passes on one handshake of all its connectors: it is left to the others.
        top = get_current_vllm_config_or_none()
        self._alone = top is not None and top.kv_transfer_config is vllm_config.kv_transfer_config
        self._preempted: dict[str, int] = {}  # how often; of those that came back at least once

    @cached_property
    def _manager(self) -> RadixShmemManager | None:
        manager = getattr(self.connector_scheduler, "manager", None)
        return manager if isinstance(manager, RadixShmemManager) else None

    @cached_property
    def _worker(self) -> RadixShmemWorker | None:
        # It is made when the KV caches are known; nobody asks before.
        worker = getattr(self.connector_worker, "worker", None)
        return worker if isinstance(worker, RadixShmemWorker) else None

    # ------------------------------------------------------------ scheduler

    def on_new_request(self, request: Request) -> None:
        if (manager := self._manager) is not None:
            manager.offer(request.request_id, request.block_hashes)
        super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if self._comes_back(request):
            return None, False
        if (manager := self._manager) is not None:
            manager.begin_round(request.request_id, request.num_tokens)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def _comes_back(self, request: Request) -> bool:
        """Whether this is the first round of a request since it was preempted.

        It is asked again one step later: before 0.33 vLLM ends with an assertion when a request is
        preempted and gets a load in one step, which happens when all running ones are reset.
        """
        times = request.num_preemptions
        if times == self._preempted.get(request.request_id, 0):
            return False
        self._preempted[request.request_id] = times
        return True

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        for request in scheduler_output.scheduled_new_reqs:
            self._forget_blocks(request.req_id)
        return super().build_connector_meta(scheduler_output)

    def _forget_blocks(self, request_id: str) -> None:
        """All blocks of a request are about to be told anew.

        vLLM appends them to those it knows, which is right only for the first time; but each turn
        of a streaming session is scheduled like a new request, and its blocks would be stored from
        wrong places.
        """
        states = getattr(self.connector_scheduler, "_req_status", {})
        for group in getattr(states.get(request_id), "group_states", ()):
            group.block_ids.clear()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        if (manager := self._manager) is not None:
            meta = connector_output.kv_connector_worker_meta
            failed = getattr(connector_output, "failed_recving", None) or ()
            if meta is not None or failed:  # most steps tell nothing
                manager.note_failures(getattr(meta, "failed_slots", ()), failed)
                manager.note_late(getattr(meta, "late_slots", ()), getattr(meta, "ended_slots", ()))
        super().update_connector_output(connector_output)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._request_ends(request)
        return super().request_finished(request, block_ids)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._request_ends(request)
        return super().request_finished_all_groups(request, block_ids)

    def _request_ends(self, request: Request) -> None:
        self._preempted.pop(request.request_id, None)
        if (manager := self._manager) is not None:
            manager.end_request(request.request_id)

    def reset_cache(self) -> bool | None:
        reset = super().reset_cache()
        if (manager := self._manager) is not None and not manager.reset_done:
            return False
        return reset

    # ------------------------------------------------------------ start

    def get_handshake_metadata(self) -> Handshake | None:
        """Called in each worker once its KV cache is registered."""
        worker = self._worker
        return Handshake.of(worker.nonce) if worker is not None and self._alone else None

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        """Called in the scheduler with what the workers say; ValueError ends the start."""
        self._require_one_server(metadata)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        self._require_one_server(metadata)

    def _require_one_server(self, workers: Mapping[Any, object]) -> None:
        if (manager := self._manager) is not None:
            require_one_server(Handshake.of(manager.nonce), workers)

    # ------------------------------------------------------------ worker

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        results = super().get_transfer_results(finished_req_ids)
        worker = self._worker
        if worker is not None and worker.failed_loads:
            failed = set(worker.take_failed_loads().values())
            results.failed_recving |= failed & results.finished_recving
        return results

    def build_connector_worker_meta(self) -> Any:
        meta = super().build_connector_worker_meta()
        worker = self._worker
        if worker is None or (meta is None and not worker.has_slot_news):
            return meta
        return WorkerMetadata.extend(
            meta or OffloadingWorkerMetadata(),
            worker.take_failed_slots(),
            worker.take_late_slots(),
            worker.take_ended_slots(),
        )

    # ------------------------------------------------------------ metrics

    @classmethod
    def build_prom_metrics(cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Any:
        prepare(vllm_config, None)
        return super().build_prom_metrics(vllm_config, *args, **kwargs)
