# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A spec whose last rank fails on demand, for workers in processes of their own.

Tests name it by `spec_name` and `spec_module_path`, and put a file into `fault_folder` for each
kind of transfer that is to fail.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm.v1.kv_offload.base import CanonicalKVCaches

from radixshmem.integrations.vllm_offload import RadixShmemOffloadingSpec
from radixshmem.integrations.vllm_offload.transfer import SlotSpec
from radixshmem.integrations.vllm_offload.worker import RadixShmemWorker

__all__ = ["FaultySpec"]


class FaultySpec(RadixShmemOffloadingSpec):
    def get_worker(self, kv_caches: CanonicalKVCaches) -> RadixShmemWorker:
        worker = super().get_worker(kv_caches)
        parallel = self.config.parallel
        if parallel.rank == parallel.world_size - 1:
            folder = Path(self.extra_config["fault_folder"])
            for kind in ("load", "store"):
                name = f"submit_{kind}"
                setattr(worker, name, _failing(getattr(worker, name), folder / kind))
        return worker


def _failing(submit: Callable[..., bool], when: Path) -> Callable[..., bool]:
    def call(job_id: int, source: Any, destination: Any, **options: Any) -> bool:
        pair = [source, destination]
        if when.exists():  # slots of a life that never was
            pair = [
                SlotSpec(each.slots, each.life ^ 1) if isinstance(each, SlotSpec) else each
                for each in pair
            ]
        return submit(job_id, *pair, **options)

    return call
