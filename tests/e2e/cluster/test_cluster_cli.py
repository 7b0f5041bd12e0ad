# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`radix-server nodes`, `drain` and `status` of a server that has peers, and how one ends."""

from __future__ import annotations

import dataclasses
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster.nodes import Cluster, cluster
from e2e.harness import GEOMETRY, ServerProcess, eventually, path_hashes

from radixshmem_core import cli
from radixshmem_core.client import RadixClient


@pytest.fixture
def pair(region_name: str, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(region_name, tmp_path) as made:
        made.start(0)
        made.start(1)
        made.settle()
        yield made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        assert cli.main(arguments) == 0
        return capsys.readouterr().out

    return run


def test_nodes_lists_the_members_and_says_what_is_different(
    pair: Cluster, run: Callable[..., str]
) -> None:
    a, b = pair.nodes
    other = pair.start(2, dataclasses.replace(GEOMETRY, fingerprint="weights 2"))
    pair.start(3, None)
    name = a.server.name
    states = {
        b.server.name[-1]: "live",
        other.server.name[-1]: "other geometry",
        "3": "waiting for a geometry",
    }

    def rows() -> dict[str, Any]:
        return {row["node"][-1]: row for row in json.loads(run("nodes", name, "--json"))}

    eventually(
        lambda: {n: row["state"] for n, row in rows().items()} == {"0": "self", **states}, "all"
    )
    row = rows()["1"]
    assert (row["rank"], row["epoch"], row["data_plane"]) == (b.rank, 0, "builtin")
    table = run("nodes", name)
    assert all(f"n{number}" in table for number in range(4))
    assert "weights 2" in " ".join(table.split())
    assert "waiting for a geometry" in " ".join(table.split())


def test_status_shows_the_cluster(pair: Cluster, run: Callable[..., str]) -> None:
    a, b = pair.nodes
    path = a.put(20, seed=1)
    a.flush()
    b.client.pull_async(path).wait(10).finalize()
    text = " ".join(run("status", b.server.name).split())
    assert "rank 1" in text
    assert "members 1 self, 1 live" in text
    assert "builtin" in text
    assert "pulled_blocks 20" in text
    assert "slots of rank 0 1 x shm" in text
    assert "read over RDMA" not in text
    assert "granted 1" in " ".join(run("status", a.server.name).split())
    report = json.loads(run("status", b.server.name, "--json"))["cluster"]
    assert report["pulls"]["pulled_blocks"] == 20
    kept = [
        json.loads(run("status", n.server.name, "--json"))["cluster"]["directory"] for n in (a, b)
    ]
    assert sum(figures["batches"] for figures in kept) > 0
    assert all(figures["malformed_batches"] == 0 for figures in kept)


def test_a_drained_node_is_found_by_nobody_and_serves_its_own(
    pair: Cluster, run: Callable[..., str]
) -> None:
    a, b = pair.nodes
    kept, gone = b.put(30, seed=1), a.put(30, seed=2)
    a.flush()
    b.flush()
    assert b.client.query(gone).common_hit == 30
    assert "serves this machine alone" in run("drain", a.server.name)
    eventually(lambda: b.client.query(gone).common_hit == 0, "its entries are withdrawn")
    assert b.client.pull_async(gone, timeout_ms=1000).wait(10).common_hit == 0
    more = a.put(30, seed=3)
    assert a.client.flush(5)
    assert b.client.query(more).common_hit == 0
    assert a.client.query(gone).common_hit == a.client.query(more).common_hit == 30
    assert a.client.query(kept).common_hit == 30  # it still finds what others have
    rows = json.loads(run("nodes", b.server.name, "--json"))
    assert [row["state"] for row in rows] == ["self", "draining"]


def test_a_node_that_forgot_its_geometry_takes_another(
    pair: Cluster, run: Callable[..., str]
) -> None:
    a, b = pair.nodes
    path = a.put(30, seed=1)
    a.flush()
    assert b.client.query(path).common_hit == 30
    a.client.close()
    out = json.loads(run("drain", a.server.name, "--forget-geometry", "--json"))
    assert out == {"name": a.server.name, "drained": True}
    assert a.server.info().mode == "waiting"
    eventually(lambda: b.client.query(path).common_hit == 0, "it is gone")
    with RadixClient(a.server.name, GEOMETRY) as client:
        client.wait_ready(10)
        new = path_hashes(30, 5)
        assert client.insert(new, client.allocate_slots(30)).error == 0
        assert client.flush(10)
        eventually(lambda: b.client.query(new).common_hit == 30, "its new cache is shared")


def test_a_server_ends_on_sigterm_while_peers_pull_from_it(
    region_name: str, tmp_path: Path, processes: Callable[..., Any]
) -> None:
    with cluster(region_name, tmp_path) as made:
        name = f"{region_name}_ends"
        flags = ("--data-bytes", "8M", "--node-name", "ends", "--transfer-backend", "builtin")
        server = processes(ServerProcess, name, "--registry", made.registry, *flags)
        server.event("waiting")
        a = made.start(0, data_bytes="8M")
        paths = [path_hashes(4, seed) for seed in range(450)]
        with RadixClient(name, GEOMETRY) as client:
            for path in paths:
                assert client.insert(path, client.allocate_slots(4)).error == 0
            eventually(lambda: a.client.query(paths[-1]).common_hit == 4, "it is found")
            hits: list[int] = []

            def pull() -> None:
                for path in paths:
                    result = a.client.pull_async(path, timeout_ms=3000).wait(10)
                    hits.append(result.common_hit)
                    result.finalize()

            thread = threading.Thread(target=pull)
            thread.start()
            eventually(lambda: len(hits) > 20, "pulls are under way")
            assert server.stop(signal.SIGTERM) == 0
            thread.join(60)
            assert not thread.is_alive()
            assert len(hits) == 450
            assert set(hits) == {0, 4}
            eventually(lambda: a.client.status().world_size == 1, "it has left", 5.0)
