# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Four nodes go to another model, and to another version of the software, one by one under load."""

from __future__ import annotations

import dataclasses
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster.nodes import Cluster, Node, cluster
from e2e.harness import GEOMETRY, Process, eventually, path_hashes

from radixshmem_core.client import RadixClient

_NODES = 4
_BLOCKS = 8

_NEWER = """
import sys
from radixshmem_core.cluster import auth, wire
setattr({"wire": wire, "auth": auth}[sys.argv[1]], sys.argv[2], 2)
from radixshmem_core.cli import main
sys.exit(main(["start", "--json", *sys.argv[3:]]))
"""


def _path(generation: int, number: int) -> Any:
    return path_hashes(_BLOCKS, 1000 * generation + number)


class _Load:
    """An engine on one node: queries and pulls what nodes of its and of other generations have."""

    def __init__(self, node: Node, generation: int, number: int) -> None:
        self.node, self.generation = node, generation
        self.own = node.insert(_path(generation, number))
        self.errors: list[str] = []
        self.remote_hits = 0
        self._random = random.Random(number)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.02):
                self._turn()
        except Exception as error:
            self.errors.append(repr(error))

    def _turn(self) -> None:
        client, number = self.node.client, self._random.randrange(_NODES)
        if client.query(self.own, local_only=True).common_hit != _BLOCKS:
            self.errors.append("a local hit is gone")
        theirs = _path(self.generation, number)
        self.remote_hits += client.query(theirs).common_hit == _BLOCKS
        result = client.pull_async(theirs, timeout_ms=500).wait(30)
        if result.common_hit and self.node.wrong(theirs[: result.common_hit], result.full_slots):
            self.errors.append("wrong bytes")
        result.finalize()
        for generation in {1, 2, 3} - {self.generation}:
            if client.query(_path(generation, number)).common_hit:
                self.errors.append(f"a hit of generation {generation}")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert not self.errors, (self.node.client.name, self.generation, self.errors[:5])


@pytest.fixture
def made(region_name: str, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(region_name, tmp_path) as empty:
        yield empty


def _found_by_all(nodes: list[Node], generation: int, numbers: range) -> bool:
    return all(
        node.client.query(_path(generation, number)).common_hit == _BLOCKS
        for node in nodes
        for number in numbers
    )


def test_nodes_go_to_another_fingerprint_one_by_one_under_load(made: Cluster) -> None:
    old = [made.start(number) for number in range(_NODES)]
    loads = [_Load(node, 1, number) for number, node in enumerate(old)]
    geometry = dataclasses.replace(GEOMETRY, fingerprint="weights 2")
    with ExitStack() as ends:
        for load in loads:
            ends.callback(load.stop)
        eventually(lambda: _found_by_all(old, 1, range(_NODES)), "the old ones share")
        new: list[Node] = []
        for number in range(_NODES):
            loads[number].stop()
            made.stop(old[number])
            new.append(made.start(number, geometry))
            loads[number] = _Load(new[number], 2, number)
            ends.callback(loads[number].stop)
            done = range(number + 1)
            eventually(lambda n=new, d=done: _found_by_all(n, 2, d), "the new ones share")
            left = range(number + 1, _NODES)
            eventually(lambda r=left: _found_by_all(old[r.start :], 1, r), "the old ones go on")
        eventually(
            lambda: all(load.remote_hits for load in loads), "each load finds what others have"
        )


@pytest.mark.parametrize(
    ("module", "constant", "state"),
    [
        ("wire", "PEER_PROTOCOL", "other geometry"),
        pytest.param("auth", "HANDSHAKE_VERSION", "unreachable", marks=pytest.mark.slow),
    ],
)
def test_nodes_go_to_another_protocol_one_by_one_under_load(
    made: Cluster, processes: Callable[..., Any], module: str, constant: str, state: str
) -> None:
    old = [made.start(number) for number in range(_NODES)]
    loads = [_Load(node, 1, number) for number, node in enumerate(old)]
    with ExitStack() as ends:
        for load in loads:
            ends.callback(load.stop)
        eventually(lambda: _found_by_all(old, 1, range(_NODES)), "the old ones share")
        new: list[Node] = []
        for number in range(_NODES):
            loads[number].stop()
            made.stop(old[number])
            name = f"{made.prefix}_{number}"
            flags = ("--node-name", f"n{number}", "--data-bytes", "1M", "--settle-ms", "50")
            server = processes(
                *(Process, "-c", _NEWER, module, constant, "--name", name, *flags),
                *("--registry", made.registry, "--transfer-backend", "builtin"),
            )
            assert '"waiting"' in server.line()
            client = ends.enter_context(RadixClient(name, GEOMETRY))
            new.append(Node(None, client))  # type: ignore[arg-type]
            ends.callback(_end, server)
            loads[number] = _Load(new[number], 3, number)
            ends.callback(loads[number].stop)
            done = range(number + 1)
            eventually(lambda n=new, d=done: _found_by_all(n, 3, d), "the new ones share")
            left = range(number + 1, _NODES)
            eventually(lambda r=left: _found_by_all(old[r.start :], 1, r), "the old ones go on")
            if left:
                eventually(lambda o=old[-1]: state in _states(o), "it is shown as another")


def _end(server: Process) -> None:
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def _states(node: Node) -> set[str]:
    return {row["state"] for row in node.server.status()["cluster"]["nodes"]}
