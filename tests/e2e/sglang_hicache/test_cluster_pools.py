# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Pages of several host pools, stored on one node and restored on another, in one process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from e2e.harness import ServerProcess, eventually
from e2e.members import cluster_figures, member_flags, wait_live
from e2e.sglang_hicache.controllers import Fetched, Rank, keys_of, start, tokens
from e2e.sglang_hicache.pools import DRAFT, MAMBA, SWA, Sidecar, ends

from radixshmem import RadixClient, fold_page_keys
from radixshmem.integrations.sglang_hicache import attached
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

Nodes = Callable[..., tuple[Rank, Rank]]


@pytest.fixture
def start_pair(region_name: str, tmp_path: Path) -> Iterator[Nodes]:
    """Starts one rank on each of two nodes, the second of which reads the first."""
    names = [f"{region_name}{node}" for node in "ab"]
    with ExitStack() as stack:
        for name in names:
            config = ServerConfig(
                name,
                data_bytes="8M",
                slot_align=64,
                swa_ratio=0.2,
                mamba_ratio=0.2,
                quarantine_s=0.2,
                registry=f"file://{tmp_path}",
                node_name=name[-1],
                settle_ms=50,
                transfer_backend="builtin",
            )
            stack.enter_context(RadixServer(config))

        def pair(*sidecars: Sidecar, **extra: object) -> tuple[Rank, Rank]:
            one, other = (start(name, *sidecars, extra=extra) for name in names)
            stack.callback(one.close)
            stack.callback(other.close)
            wait_live(*names)
            eventually(lambda: reads_all(client(other)), "one reads the other")
            return one, other

        yield pair


def reads_all(reader: RadixClient) -> bool:
    return sum(not row["suspect"] for row in reader.peer_connections()) == 2


def client(rank: Rank) -> RadixClient:
    of_storage: RadixClient = rank.storage._attachment.attached.connection.client
    return of_storage


@pytest.mark.parametrize(
    "sidecars",
    [(), (DRAFT,), (SWA,), (MAMBA,), (DRAFT, SWA, MAMBA)],
    ids=["kv", "draft", "swa", "mamba", "all"],
)
def test_another_node_gets_the_bytes_that_one_stored(
    start_pair: Nodes, monkeypatch: pytest.MonkeyPatch, sidecars: tuple[Sidecar, ...]
) -> None:
    monkeypatch.setattr(attached, "window_pages", lambda page_size: SWA.window_pages)
    one, other = start_pair(*sidecars)
    assert one.store(tokens(300)) == 300
    assert one.store(tokens(20, 1)) == 20
    assert client(one).flush()
    assert other.fetch(tokens(310)) == Fetched(300, 300, ends(sidecars))
    assert other.fetch(tokens(20, 1), 7) == Fetched(13, 13, ends(sidecars)), "the device has 7"
    assert cluster_figures(client(other).name)["pulls"]["pulled_blocks"] == 320
    jobs = cluster_figures(client(other).name)["pulls"]["jobs"]
    assert other.fetch(tokens(300), 7) == Fetched(293, 293, ends(sidecars))
    assert cluster_figures(client(other).name)["pulls"]["jobs"] == jobs, "all is local now"
    assert client(other).index._index.pins() == []


def test_without_time_for_a_fetch_other_nodes_are_not_asked(
    start_pair: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "window_pages", lambda page_size: SWA.window_pages)
    one, other = start_pair(SWA, pull_timeout_ms=0)
    assert one.store(tokens(20)) == 20
    assert client(one).flush()
    assert client(other).query(fold_page_keys(keys_of(tokens(20)))).common_hit == 20
    assert other.query(tokens(20)).storage_hit_count == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_member_that_does_not_answer_is_not_needed_to_store(
    region_name: str,
    tmp_path: Path,
    start_server: Callable[..., ServerProcess],
    start_rank: Callable[..., Rank],
    number: signal.Signals,
) -> None:
    """Nor is it asked twice: a node of two batches is stored whole."""
    flags = member_flags(tmp_path, "a", "tcp")
    server = start_server("--slot-align", "64", *flags, data_bytes="2M")
    server.event("waiting")
    rank = start_rank()
    wait_live(region_name)
    server.signal(number)
    path = tokens(200)
    assert rank.store(path) == 200
    assert rank.fetch(path) == Fetched(200, 200, {})
    if number == signal.SIGKILL:
        server.wait()
        server = start_server("--slot-align", "64", *flags, data_bytes="2M")
        server.event("adopted")
    else:
        server.signal(signal.SIGCONT)
    assert rank.fetch(path) == Fetched(200, 200, {})
    assert server.stop() == 0


def test_clear_drops_the_trees_of_all_nodes(start_pair: Nodes) -> None:
    one, other = start_pair()
    assert one.store(tokens(20)) == 20
    assert other.store(tokens(30, 1)) == 30
    assert other.controller.clear_storage_backend()
    eventually(lambda: client(one).total_blocks() == 0, "the tree of the other node is dropped")
    assert client(other).total_blocks() == 0
    for rank in (one, other):
        assert rank.query(tokens(20)).storage_hit_count == 0
        assert rank.query(tokens(30, 1)).storage_hit_count == 0
