# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Tensor, pipeline and data parallelism without an engine: who has which bytes of a slot."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from e2e.vllm_offload import contracts
from e2e.vllm_offload.contracts import FULL, MAMBA, WINDOW, kv_caches, offloading_config
from vllm.distributed import parallel_state
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec

from radixshmem import GeometryMismatch, RadixClient
from radixshmem.integrations.vllm_offload import RadixShmemOffloadingSpec
from radixshmem.integrations.vllm_offload.groups import GroupShape, map_groups
from radixshmem.integrations.vllm_offload.identity import fingerprint, model_identity, slot_identity
from radixshmem.integrations.vllm_offload.ranks import Host, RankReport, exchange_reports
from radixshmem.integrations.vllm_offload.transfer import SlotSpec
from radixshmem.integrations.vllm_offload.worker import RadixShmemWorker
from radixshmem_core.server import RadixServer

_DEADLINE_S = 30


class _Group:
    """What vLLM calls a group of ranks, for ranks that are threads."""

    def __init__(self, size: int) -> None:
        self.world_size = size
        self.cpu_group = self
        self._barrier = threading.Barrier(size)
        self._said: dict[int, Any] = {}

    def gather(self, into: list[Any], mine: list[RankReport]) -> None:
        self._said[mine[0].rank] = mine
        self._barrier.wait(_DEADLINE_S)
        into[:] = [self._said[rank] for rank in sorted(self._said)]
        self._barrier.wait(_DEADLINE_S)


@pytest.fixture
def as_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Runs a function for each rank of a (tensor x pipeline) engine, all at the same time."""

    def run(tensor: int, pipeline: int, work: Callable[[int], Any]) -> list[Any]:
        here = threading.local()
        tensor_groups = [_Group(tensor) for _ in range(pipeline)]
        pipeline_groups = [_Group(pipeline) for _ in range(tensor)]
        monkeypatch.setattr(parallel_state, "get_tp_group", lambda: here.tensor)
        monkeypatch.setattr(parallel_state, "get_pp_group", lambda: here.pipeline)
        monkeypatch.setattr(parallel_state, "get_pcp_group", lambda: _Group(1), raising=False)
        monkeypatch.setattr(
            torch.distributed,
            "all_gather_object",
            lambda into, mine, group: group.gather(into, mine),
        )

        def one(rank: int) -> Any:
            here.tensor = tensor_groups[rank // tensor]
            here.pipeline = pipeline_groups[rank % tensor]
            return work(rank)

        with ThreadPoolExecutor(tensor * pipeline) as threads:
            return list(threads.map(one, range(tensor * pipeline)))

    return run


def _report(rank: int, *sizes: int) -> RankReport:
    return RankReport(rank, Host.here(), sizes, tuple((f"layer{rank}",) for _ in sizes))


# ------------------------------------------------------------ where the bytes lie


def test_groups_of_a_class_share_a_slot_rank_by_rank() -> None:
    shapes = [GroupShape(*WINDOW), GroupShape(*WINDOW), GroupShape(*FULL)]
    groups = map_groups(shapes, contracts.BLOCK)
    assert (groups.window_blocks, groups.mask()) == (2, 3)
    second = groups.placed([[100, 28, 64]] * 4, 1)
    assert [g.offset for g in second.groups] == [128, 228, 64]
    assert [g.bytes for g in second.groups] == [100, 28, 64]
    assert second.sizes == (4 * 64, 4 * 128, 0)


def test_stages_of_a_pipeline_have_as_many_bytes_as_they_have_layers() -> None:
    groups = map_groups([GroupShape(*FULL), GroupShape(*MAMBA)], contracts.BLOCK)
    ranks = [[30, 7], [30, 7], [10, 0], [10, 0]]  # two stages of two tensor ranks
    placed = [groups.placed(ranks, rank) for rank in range(4)]
    assert [[g.offset for g in p.groups] for p in placed] == [[0, 0], [30, 7], [60, 14], [70, 14]]
    assert {p.sizes for p in placed} == {(80, 0, 14)}


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (1, 3), (2, 2), (4, 2)])
def test_every_rank_learns_the_bytes_of_all(
    as_ranks: Callable[..., list[Any]], tensor: int, pipeline: int
) -> None:
    size = tensor * pipeline
    learned = as_ranks(tensor, pipeline, lambda rank: exchange_reports(_report(rank, rank), size))
    assert learned == [[_report(rank, rank) for rank in range(size)]] * size


def test_ranks_that_cannot_be_heard_are_refused(as_ranks: Callable[..., list[Any]]) -> None:
    with pytest.raises(ValueError, match=r"ranks \[0, 1\], and the engine has 4 ranks"):
        as_ranks(2, 1, lambda rank: exchange_reports(_report(rank, 1), 4))


# ------------------------------------------------------------ workers over one server


def _workers(
    server: str, caches: list[CanonicalKVCaches], as_ranks: Callable[..., list[Any]], **changes: Any
) -> list[RadixShmemWorker]:
    def start(rank: int) -> RadixShmemWorker:
        layers = [[f"layers.{rank}.{i}" for i in range(len(caches[rank].group_data_refs[0]))]]
        config = offloading_config(server, rank=rank, layers=layers, **changes)
        return RadixShmemOffloadingSpec(config).get_worker(caches[rank])

    tensor, pipeline = changes.get("tp_size", 1), changes.get("pp_size", 1)
    workers: list[RadixShmemWorker] = as_ranks(tensor, pipeline, start)
    return workers


def _copies(caches: CanonicalKVCaches) -> list[torch.Tensor]:
    return [each.tensor.clone() for each in caches.tensors]


def _transfer(workers: list[RadixShmemWorker], slots: list[int], blocks: list[int]) -> SlotSpec:
    """Have all of them store the blocks, and then lose their caches and load them again."""
    spec = SlotSpec(np.array(slots, np.int32), workers[0].nonce, "request")
    where = GPULoadStoreSpec(blocks, group_sizes=[len(blocks)], block_indices=[0])
    for worker in workers:
        worker.submit_store(1, where, spec)
        worker.get_finished()
    return spec


@pytest.mark.parametrize("stages", [[[64] * 3, [64]], [[64], [64, 32, 64]], [[64, 64], []]])
def test_stages_store_and_load_their_parts(
    cache: RadixServer,
    region_name: str,
    as_ranks: Callable[..., list[Any]],
    stages: list[list[int]],
) -> None:
    caches = [kv_caches([sizes], fill=1 + rank) for rank, sizes in enumerate(stages)]
    workers = _workers(region_name, caches, as_ranks, pp_size=2)
    want = [_copies(each) for each in caches]
    with RadixClient(region_name, group="engine") as client:
        slots = client.allocate_slots(4).tolist()
        blocks = [5, 1, 7, 2]
        spec = _transfer(workers, slots, blocks)
        # One slot: the layers of the first stage, then those of the second.
        parts = [tensor[blocks[0]].numpy().tobytes() for rank in want for tensor in rank]
        assert bytes(client.slot_view(slots[0])[: sum(map(sum, stages))]) == b"".join(parts)
        where = GPULoadStoreSpec(blocks, group_sizes=[4], block_indices=[0])
        for worker, each, old in zip(workers, caches, want, strict=True):
            for tensor in each.tensors:
                tensor.tensor.zero_()
            worker.submit_load(2, spec, where)
            worker.get_finished()
            assert worker.take_failed_loads() == {}
            for tensor, before in zip(each.tensors, old, strict=True):
                assert torch.equal(tensor.tensor[blocks], before[blocks])
                assert not tensor.tensor[0].any()
    for worker in workers:
        worker.shutdown()


def test_a_replicated_cache_is_in_the_slot_once(
    cache: RadixServer, region_name: str, as_ranks: Callable[..., list[Any]]
) -> None:
    caches = [kv_caches([[64, 64]], fill=7) for _ in range(2)]
    workers = _workers(region_name, caches, as_ranks, tp_size=2, replicated_layout=True)
    with RadixClient(region_name, group="engine") as client:
        assert client.geometry is not None
        assert client.geometry["pools"]["full"]["slot_bytes"] == 128
        slots = client.allocate_slots(1).tolist()
        want = _copies(caches[1])
        spec = _transfer(workers[:1], slots, [3])  # vLLM has rank 0 alone store
        caches[1].tensors[0].tensor.zero_()
        workers[1].submit_load(2, spec, GPULoadStoreSpec([3], group_sizes=[1], block_indices=[0]))
        assert torch.equal(caches[1].tensors[0].tensor[3], want[0][3])
    for worker in workers:
        worker.shutdown()


def test_a_cache_that_is_not_replicated_after_all_is_refused(
    cache: RadixServer, region_name: str, as_ranks: Callable[..., list[Any]]
) -> None:
    caches = [kv_caches([[64]]), kv_caches([[32]])]
    with pytest.raises(ValueError, match="same KV cache"):
        _workers(region_name, caches, as_ranks, tp_size=2, replicated_layout=True)


def test_the_scheduler_takes_the_geometry_that_its_workers_have_formed(
    cache: RadixServer, region_name: str, as_ranks: Callable[..., list[Any]]
) -> None:
    caches = [kv_caches([[64] * 3], fill=1), kv_caches([[64]], fill=2)]
    workers = _workers(region_name, caches, as_ranks, pp_size=2)
    manager = RadixShmemOffloadingSpec(offloading_config(region_name, pp_size=2)).get_manager()
    assert manager.nonce == workers[0].nonce == workers[1].nonce
    assert manager._client.geometry["pools"]["full"]["slot_bytes"] == 256
    manager.shutdown()
    for worker in workers:
        worker.shutdown()


# ------------------------------------------------------------ identity


def _fingerprint(config: Any, model: Any, *reports: RankReport) -> str:
    known = slot_identity(config) | model_identity(model)
    return fingerprint(known, [FULL[1:]], reports or [_report(0, 64)])


def test_data_parallel_replicas_share_one_identity(llama: str) -> None:
    config = contracts.vllm_config(llama)
    replica = copy.deepcopy(config)
    replica.parallel_config.data_parallel_size = 2
    replica.parallel_config.data_parallel_rank = 1
    replica.parallel_config.data_parallel_index = 1
    replica.parallel_config.data_parallel_rank_local = 1
    one = offloading_config("/s", engine_id="e_dp0", data_parallel_size=2)
    other = offloading_config(
        "/s", engine_id="e_dp1", data_parallel_index=1, data_parallel_size=2,
        data_parallel_rank_local=1,
    )  # fmt: skip
    assert _fingerprint(one, config) == _fingerprint(other, replica)


def _with(value: Any, *path: str) -> Callable[[Any], None]:
    def change(config: Any) -> None:
        for name in path[:-1]:
            config = getattr(config, name)
        setattr(config, path[-1], value)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _with("other", "model_config", "model"),
        _with("abc123", "model_config", "revision"),
        _with({"rope_theta": 1}, "model_config", "hf_overrides"),
        _with("fp8", "model_config", "quantization"),
        _with(torch.bfloat16, "model_config", "dtype"),
        _with("fp8_e5m2", "cache_config", "cache_dtype"),
        _with("sha256_cbor", "cache_config", "prefix_caching_hash_algo"),
    ],
)
def test_another_model_has_another_identity(llama: str, change: Callable[[Any], None]) -> None:
    config = contracts.vllm_config(llama)
    other = copy.deepcopy(config)
    change(other)
    offloading = offloading_config("/s")
    assert _fingerprint(offloading, config) != _fingerprint(offloading, other)


@pytest.mark.parametrize(
    "changes",
    [
        {"tp_size": 2},
        {"pp_size": 2},
        {"pcp_size": 2},
        {"dcp_size": 2},
        {"kv_cache_layout": "LBHNC"},
        {"replicated_layout": True},
        {"canonical_layout": True},
        {"chunk_blocks": 2},
    ],
)
def test_another_layout_has_another_identity(llama: str, changes: dict[str, Any]) -> None:
    config = contracts.vllm_config(llama)
    one, other = offloading_config("/s"), offloading_config("/s", **changes)
    assert _fingerprint(one, config) != _fingerprint(other, config)


def test_the_identity_has_what_the_ranks_alone_know(llama: str) -> None:
    config, offloading = contracts.vllm_config(llama), offloading_config("/s", pp_size=2)
    reports = [_report(0, 64), _report(1, 32)]
    whole = json.loads(_fingerprint(offloading, config, *reports))
    assert whole["layers"] == [["layer0", "layer1"]]
    assert whole["bytes"] == [[64], [32]]
    assert whole["groups"] == [[0, 0]]
    draft = RankReport(1, Host.here(), (32,), (("layer1",),), ("draft group 0",))
    assert _fingerprint(offloading, config, reports[0], draft) != json.dumps(whole)


def test_workers_of_another_parallel_size_are_refused(
    cache: RadixServer, region_name: str, as_ranks: Callable[..., list[Any]]
) -> None:
    (worker,) = _workers(region_name, [kv_caches([[64, 64]])], as_ranks)
    halves = [kv_caches([[64]]), kv_caches([[64]])]
    with pytest.raises(GeometryMismatch, match=r"parallel\.tensor: server 1, client 2"):
        _workers(region_name, halves, as_ranks, tp_size=2)
    worker.shutdown()
