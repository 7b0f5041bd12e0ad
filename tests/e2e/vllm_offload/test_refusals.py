# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What is refused when an engine starts: each says what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from e2e.vllm_offload import contracts
from e2e.vllm_offload.contracts import FULL, WINDOW, kv_caches, offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from radixshmem import Geometry, GeometryMismatch, RadixClient, ServerNotReady
from radixshmem.integrations.vllm_offload import (
    RadixShmemConnector,
    RadixShmemOffloadingSpec,
    ranks,
)
from radixshmem.integrations.vllm_offload.connector import require_names
from radixshmem.integrations.vllm_offload.identity import model_identity
from radixshmem.integrations.vllm_offload.ranks import (
    Handshake,
    Host,
    require_one_host,
    require_one_server,
)
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

HERE = Handshake(Host("node-a", "boot-a"), 7)


# ------------------------------------------------------------ hosts


def test_ranks_on_two_hosts_are_refused_by_name() -> None:
    hosts = [("rank 0", HERE.host), ("rank 1", Host("node-b", "boot-b"))]
    with pytest.raises(ValueError, match="rank 0 runs on host 'node-a' and rank 1 on 'node-b'"):
        require_one_host(hosts)


def test_containers_of_one_host_are_one_host() -> None:
    require_one_host([("rank 0", HERE.host), ("rank 1", Host("container", "boot-a"))])


def test_a_worker_asks_before_it_attaches(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_two(mine: ranks.RankReport, _: int) -> list[ranks.RankReport]:
        away = ranks.RankReport(1, Host("node-b", "boot-b"), mine.group_bytes, mine.layers)
        return [mine, away]

    monkeypatch.setattr("radixshmem.integrations.vllm_offload.spec.exchange_reports", of_two)
    spec = RadixShmemOffloadingSpec(offloading_config("/radixshmem_nobody", tp_size=2))
    with pytest.raises(ValueError, match=f"{Host.here().name!r} and rank 1 on 'node-b'"):
        spec.get_worker(kv_caches([[64]]))


def test_a_scheduler_on_another_host_than_its_workers_is_refused_by_name() -> None:
    away = Handshake(Host("node-b", "boot-b"), 7)
    with pytest.raises(ValueError, match=r"scheduler runs on host 'node-a'.*on 'node-b'"):
        require_one_server(HERE, {(0, 0): HERE, (1, 0): away})


def test_workers_on_another_server_of_the_same_name_are_refused() -> None:
    unshared = Handshake(Host("container", "boot-a"), 8)
    with pytest.raises(ValueError, match=r"'container'.*share one /dev/shm"):
        require_one_server(HERE, {(0, 0): unshared})


def test_handshakes_of_other_connectors_are_none_of_ours() -> None:
    require_one_server(HERE, {0: object(), 1: HERE})


def test_the_connector_hands_over_where_it_is_unless_it_is_one_of_several() -> None:
    connector: Any = RadixShmemConnector.__new__(RadixShmemConnector)
    worker = pytest.MonkeyPatch()
    with worker.context() as patch:
        patch.setattr(RadixShmemConnector, "_worker", SimpleNamespace(nonce=7))
        connector._alone = True
        assert connector.get_handshake_metadata() == Handshake(Host.here(), 7)
        connector._alone = False
        assert connector.get_handshake_metadata() is None
        patch.setattr(RadixShmemConnector, "_manager", SimpleNamespace(nonce=8))
        for hand_over in (
            connector.set_xfer_handshake_metadata,
            connector.set_xfer_handshake_metadata_pp_aware,
        ):
            with pytest.raises(ValueError, match="share one /dev/shm"):
                hand_over({(1, 0): Handshake(Host.here(), 7)})
    assert hasattr(OffloadingConnector, "get_handshake_metadata"), "vLLM calls it"


# ------------------------------------------------------------ servers


def _spec(server: str, *shapes: tuple[str, int, int], **changes: Any) -> RadixShmemOffloadingSpec:
    return RadixShmemOffloadingSpec(offloading_config(server, shapes or (FULL,), **changes))


def test_no_server_is_told_by_name_and_host(region_name: str) -> None:
    spec = _spec(region_name, extra={"wait_server_s": 0.3})
    named = f"no radix-server {region_name} on host {Host.here().name!r} after 0.3 s"
    with pytest.raises(ServerNotReady, match=named):
        spec.get_worker(kv_caches([[64]]))
    with pytest.raises(ServerNotReady, match=named):
        spec.get_manager()


def test_a_server_without_slots_is_refused(region_name: str) -> None:
    with RadixServer(ServerConfig(region_name, index_slots=64)):
        with pytest.raises(ValueError, match=r"holds an index only.*--data-bytes"):
            _spec(region_name).get_worker(kv_caches([[64]]))
        with pytest.raises(ValueError, match=r"holds an index only.*--data-bytes"):
            _spec(region_name).get_manager()


def test_a_server_of_another_geometry_is_refused_with_both_sides(
    cache: RadixServer, region_name: str
) -> None:
    theirs = Geometry(contracts.BLOCK, 64, fingerprint="made by somebody else")
    with RadixClient(region_name, theirs):
        with pytest.raises(GeometryMismatch, match=r'(?s)made by somebody else.*"model":"tiny"'):
            _spec(region_name).get_worker(kv_caches([[64]]))
        with pytest.raises(GeometryMismatch, match=r"(?s)another --name.*made by somebody else"):
            _spec(region_name).get_manager()


def test_a_scheduler_refuses_a_server_of_another_model(
    cache: RadixServer, region_name: str
) -> None:
    worker = _spec(region_name).get_worker(kv_caches([[64]]))
    other = {"radixshmem_identity": {"model": "other"}}
    with pytest.raises(GeometryMismatch, match=r"(?s)disagree on \['model'\].*other.*tiny"):
        _spec(region_name, extra=other).get_manager()
    worker.shutdown()


def test_a_scheduler_waits_no_longer_than_it_was_told(cache: RadixServer, region_name: str) -> None:
    spec = _spec(region_name, extra={"wait_server_s": 0.3})
    with pytest.raises(TimeoutError, match="waiting"):
        spec.get_manager()


# ------------------------------------------------------------ options and models


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"chunk_blocks": 4}, "blocks_per_chunk is 4"),
        ({"canonical_layout": True}, "canonical_layout is set"),
        ({"extra": {"server_name": ""}}, "lacks 'server_name'"),
        ({"layers": [["a"], ["b"]]}, "offloads 2 of the 1 KV cache groups"),
    ],
)
def test_options_that_do_not_work_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        _spec("/radixshmem_nobody", **changes)


def test_windows_of_two_sizes_are_refused_with_what_works() -> None:
    wide = (WINDOW[0], WINDOW[1], 2 * WINDOW[2])
    with pytest.raises(ValueError, match=r"windows of \[2, 4\] blocks: radixshmem takes"):
        _spec("/radixshmem_nobody", FULL, WINDOW, wide)


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_hashes_with_a_random_seed_are_refused(
    llama: str, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    config = contracts.vllm_config(llama)
    config.cache_config.prefix_caching_hash_algo = algorithm  # type: ignore[assignment]
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(ValueError, match=f"'{algorithm}' has a random seed.*set PYTHONHASHSEED"):
        model_identity(config)
    seeds = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        seeds.append(model_identity(config)["hash"])
    assert seeds == [[algorithm, "1"], [algorithm, "2"]]


def test_names_that_a_vllm_does_not_have_are_told_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    require_names(SimpleNamespace(manager=None, _req_status={}), None)
    require_names(None, SimpleNamespace(worker=None))
    assert not caplog.records
    require_names(SimpleNamespace(), None)
    assert ["nothing is stored" in r.message for r in caplog.records] == [True, False]
    with pytest.raises(ValueError, match="hides the worker"):
        require_names(None, SimpleNamespace())
