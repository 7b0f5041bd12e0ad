# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What tests have workers do that run in processes of their own.

`FaultySpec`, named by `spec_name` and `spec_module_path`, has the last rank fail on demand: tests
put a file into `radixshmem_fault_folder` for each kind of transfer that is to fail.
`Stage`, named by `worker_extension_cls`, does for pipelines on the CPU what a trial run does on
GPUs, and which vLLM leaves out there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm.distributed import get_pp_group
from vllm.v1.kv_offload.base import CanonicalKVCaches

from radixshmem.integrations.vllm_offload import RadixShmemOffloadingSpec
from radixshmem.integrations.vllm_offload.transfer import SlotSpec
from radixshmem.integrations.vllm_offload.worker import RadixShmemWorker

__all__ = ["FaultySpec", "Stage"]


class FaultySpec(RadixShmemOffloadingSpec):
    def get_worker(self, kv_caches: CanonicalKVCaches) -> RadixShmemWorker:
        worker = super().get_worker(kv_caches)
        parallel = self.config.parallel
        if parallel.rank == parallel.world_size - 1:
            folder = Path(self.extra_config["radixshmem_fault_folder"])
            for kind in ("load", "store"):
                name = f"submit_{kind}"
                setattr(worker, name, _failing(getattr(worker, name), folder / kind))
        return worker


def _failing(submit: Callable[..., bool], when: Path) -> Callable[..., bool]:
    def call(job_id: int, source: Any, destination: Any, **options: Any) -> bool:
        pair = [source, destination]
        if when.exists():  # slots of a life that never was
            pair = [
                SlotSpec(each.slots, each.life ^ 1, each.request)
                if isinstance(each, SlotSpec)
                else each
                for each in pair
            ]
        return submit(job_id, *pair, **options)

    return call


class Stage:
    """Methods of vLLM's workers."""

    model_runner: Any

    def make_room_for_the_stage_before(self) -> None:
        runner = self.model_runner
        if not get_pp_group().is_first_rank:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens,
                dtype=runner.model_config.dtype,
                device=runner.device,
            )
