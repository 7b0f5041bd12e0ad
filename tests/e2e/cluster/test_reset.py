# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""After reset(cluster=True) has returned, nobody finds or restores what was cached before it."""

from __future__ import annotations

import asyncio
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster.nodes import Cluster, Node, cluster
from e2e.harness import GEOMETRY, ServerProcess, eventually, path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.cluster import wire
from radixshmem_core.cluster.dialer import dial
from radixshmem_core.cluster.peer_link import PeerLink
from radixshmem_core.cluster.shared_index import geometry_key
from radixshmem_core.errors import RadixError, ServerNotReady


@pytest.fixture
def made(region_name: str, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(region_name, tmp_path / "registry") as empty:
        yield empty


def _start(made: Cluster, count: int) -> list[Node]:
    for number in range(count):
        made.start(number)
    made.settle()
    return made.nodes


def _hits(client: RadixClient, paths: list[Any]) -> list[int]:
    """What a query finds and what a pull restores of each path."""
    found = [client.query(path).common_hit for path in paths]
    for path in paths:
        result = client.pull_async(path, timeout_ms=2000).wait(10)
        found.append(result.common_hit)
        result.finalize()
    return found


def test_a_reset_drops_the_tree_also_of_an_epoch_that_the_registry_has_lost(made: Cluster) -> None:
    nodes = _start(made, 2)
    path = nodes[0].put(20, seed=1)
    address, _, port = nodes[0].server.status()["cluster"]["address"].rpartition(":")

    async def tell() -> None:
        link = PeerLink("n0", lambda: dial(address, int(port), wire.CONTROL, b"", 5.0))
        key = geometry_key(nodes[0].client.geometry or {})
        await link.ask(wire.EpochRaised(key=key, epoch=100), 10.0)
        await link.close()

    asyncio.run(tell())
    assert nodes[0].client.query(path).common_hit == 0
    path = nodes[0].put(20, seed=2)
    nodes[0].client.reset(cluster=True)
    assert nodes[0].client.query(path).common_hit == 0
    made.settle()
    path = nodes[1].put(20, seed=3)
    nodes[1].flush()
    eventually(lambda: nodes[0].client.query(path).common_hit == 20, "they are one cluster again")


def test_nobody_finds_or_restores_older_blocks_from_anybody(made: Cluster) -> None:
    nodes = _start(made, 4)
    paths = [node.put(40, seed=number) for number, node in enumerate(nodes)]
    for node in nodes:
        node.flush()
    for node in nodes:
        assert [node.client.query(path).common_hit for path in paths] == [40] * 4
    for turn, node in enumerate(nodes[:2]):
        node.client.reset(cluster=True)
        for other in nodes:
            assert _hits(other.client, paths) == [0] * 8, (turn, other.rank)
        fresh = node.put(40, seed=100 + turn)
        paths.append(fresh)
        node.flush()
        for other in nodes:
            eventually(lambda o=other, f=fresh: o.client.query(f).common_hit == 40, "a new path")
        paths = [fresh, *paths[:3]]
        nodes[2].client.reset(cluster=True)
        for other in nodes:
            assert _hits(other.client, paths) == [0] * 8, (turn, other.rank)


def test_pulls_under_way_restore_nothing_older(made: Cluster) -> None:
    for number in range(3):
        made.start(number, data_bytes="8M")
    made.settle()
    a, *others = made.nodes
    paths = [a.put(4, seed=seed) for seed in range(300)]
    a.flush()
    pulled = {node.rank: 0 for node in others}
    stop = threading.Event()

    def pull(node: Node, rank: int) -> None:
        for path in paths:
            if stop.is_set():
                return
            result = node.client.pull_async(path, timeout_ms=5000).wait(10)
            pulled[rank] += result.common_hit > 0
            result.finalize()

    threads = [threading.Thread(target=pull, args=(node, node.rank)) for node in others]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: all(count > 10 for count in pulled.values()), "some are pulled")
        a.client.reset(cluster=True)
        assert all(count < 300 for count in pulled.values())  # it came between
        for node in (a, *others):
            assert [node.client.query(path).common_hit for path in paths] == [0] * 300
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for node in (a, *others):
        assert [node.client.query(path).common_hit for path in paths] == [0] * 300


def _flags(made: Cluster) -> tuple[str, ...]:
    return (
        *("--registry", made.registry, "--node-name", "old", "--data-bytes", "1M"),
        *("--transfer-backend", "builtin", "--settle-ms", "50"),
    )


def _answers(client: RadixClient) -> bool:
    try:
        return client.status().mode == "ready"
    except ServerNotReady:
        return False


def test_a_node_that_was_down_drops_the_tree_that_it_adopts(
    made: Cluster, region_name: str, processes: Callable[..., Any]
) -> None:
    name = f"{region_name}_old"
    server = processes(ServerProcess, name, *_flags(made))
    server.event("waiting")
    with RadixClient(name, GEOMETRY) as client:
        a, b = made.start(0), made.start(1)
        made.settle_reads(a, b)
        old = path_hashes(40, 1)
        assert client.insert(old, client.allocate_slots(40)).error == 0
        eventually(lambda: a.client.query(old).common_hit == 40, "it is found")
        server.signal(signal.SIGKILL)
        server.wait()
        eventually(lambda: a.client.status().world_size == 2, "it is not listed any more")
        a.client.reset(cluster=True)
        server = processes(ServerProcess, name, *_flags(made))
        eventually(lambda: _answers(client), "the server answers")
        assert client.query(old, local_only=True).common_hit == 0
        server.event("adopted")
        eventually(lambda: client.status().world_size == 3, "it is a member again")
        for other in (a.client, b.client, client):
            assert _hits(other, [old]) == [0, 0]
    assert server.stop() == 0


def test_a_node_that_comes_back_to_the_same_epoch_keeps_its_tree(
    made: Cluster, region_name: str, processes: Callable[..., Any]
) -> None:
    name = f"{region_name}_old"
    a = made.start(0)
    a.client.reset(cluster=True)
    server = processes(ServerProcess, name, *_flags(made))
    server.event("waiting")
    with RadixClient(name, GEOMETRY) as client:
        kept = path_hashes(40, 1)
        assert client.insert(kept, client.allocate_slots(40)).error == 0
        eventually(lambda: a.client.query(kept).common_hit == 40, "it is found")
        server.signal(signal.SIGKILL)
        server.wait()
        server = processes(ServerProcess, name, *_flags(made))
        server.event("adopted")
        client.wait_ready(10)
        assert client.query(kept).common_hit == 40
        eventually(lambda: a.client.query(kept).common_hit == 40, "it is found again")
    assert server.stop() == 0


def test_a_stopped_node_is_named_and_drops_its_tree_when_it_goes_on(
    made: Cluster,
    region_name: str,
    processes: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("radixshmem_core.cluster.reset._CONFIRM_S", 2.5)
    name = f"{region_name}_old"
    server = processes(ServerProcess, name, *_flags(made))
    server.event("waiting")
    with RadixClient(name, GEOMETRY) as client:
        a = made.start(0)
        old = path_hashes(40, 1)
        assert client.insert(old, client.allocate_slots(40)).error == 0
        eventually(lambda: a.client.query(old).common_hit == 40, "it is found")
        server.signal(signal.SIGSTOP)
        with pytest.raises(RadixError, match="old"):
            a.client.reset(cluster=True)
        assert a.client.query(old).common_hit == 0
        monkeypatch.undo()
        server.signal(signal.SIGCONT)
        eventually(lambda: client.query(old).common_hit == 0, "it has dropped its tree")
        for other in (a.client, client):
            assert _hits(other, [old]) == [0, 0]
        a.client.reset(cluster=True)
    assert server.stop() == 0


def test_without_its_registry_a_reset_is_refused_and_changes_nothing(made: Cluster) -> None:
    a, b = _start(made, 2)
    path = a.put(40, seed=1)
    a.flush()
    registry = Path(made.registry.removeprefix("file://"))
    shutil.rmtree(registry)
    registry.write_text("in the way")
    with pytest.raises(RadixError, match="registry"):
        a.client.reset(cluster=True)
    assert [node.client.query(path).common_hit for node in (a, b)] == [40, 40]
