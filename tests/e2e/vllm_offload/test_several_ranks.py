# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Real engines of two ranks, each in a process of its own. A start takes most of a minute."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.vllm_offload.engines import BLOCK, CONFIG, Engine, prompt
from vllm.config import KVTransferConfig

from radixshmem_core.server import RadixServer

A = prompt(1, 10 * BLOCK + 4)
B = prompt(2, 6 * BLOCK + 4)
SLOT_BYTES = 65536  # of all ranks together, however they are split


def _faulty(server: str, folder: Path) -> KVTransferConfig:
    options = json.loads(CONFIG.read_text(encoding="utf-8"))
    options["kv_connector_extra_config"] |= {
        "server_name": server,
        "spec_name": "FaultySpec",
        "spec_module_path": "e2e.vllm_offload.faults",
        "radixshmem_fault_folder": str(folder),
    }
    return KVTransferConfig(**options)


@pytest.mark.parametrize(
    "axis",
    [
        "tensor_parallel_size",
        pytest.param("pipeline_parallel_size", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_store_and_restore_and_one_may_fail(
    llama: str,
    reference: Any,
    cache: RadixServer,
    region_name: str,
    start_engine: Callable[..., Engine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    axis: str,
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    want = reference.tokens(llama, [A, B])
    if axis == "pipeline_parallel_size":
        monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "3,1")  # of four layers
    ranks_heard: list[Any] = []
    monkeypatch.setattr(
        "radixshmem.integrations.vllm_offload.connector.require_one_server",
        lambda mine, ranks: ranks_heard.extend((rank, mine == its) for rank, its in ranks.items()),
    )
    engine = start_engine(
        llama,
        transfer=_faulty(region_name, tmp_path),
        distributed_executor_backend="mp",
        worker_extension_cls="e2e.vllm_offload.faults.Stage",
        **{axis: 2},
    )
    engine.llm.collective_rpc("make_room_for_the_stage_before")
    second = (0, 1) if axis == "tensor_parallel_size" else (1, 0)  # (pipeline, tensor)
    assert sorted(ranks_heard) == [((0, 0), True), (second, True)]
    manager = engine.manager
    pools = manager._client.geometry["pools"]
    assert pools["full"]["slot_bytes"] == SLOT_BYTES

    assert engine.generate([A]) == (want[:1], [0]), "cold"
    engine.settle()
    engine.forget()
    assert engine.generate([A]) == (want[:1], [10 * BLOCK]), "restored"
    engine.assert_idle()

    engine.forget()
    (tmp_path / "load").touch()
    assert engine.generate([A])[0] == want[:1]
    (tmp_path / "load").unlink()
    assert manager.figures.failed_loads == 1
    engine.assert_idle()
    engine.forget()
    assert engine.generate([A]) == (want[:1], [10 * BLOCK]), "the slots were never bad"

    (tmp_path / "store").touch()
    assert engine.generate([B]) == (want[1:], [0])
    engine.settle()
    (tmp_path / "store").unlink()
    assert manager.figures.failed_stores == 6
    assert manager._client.mempool_used() == 10, "half-written slots came back"
    engine.forget()
    assert engine.generate([B]) == (want[1:], [0])
    engine.store([B])
    assert engine.generate([B]) == (want[1:], [6 * BLOCK])
    engine.assert_idle()
