# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Pulls while the owner is stopped, dies, or is another than before; pulls of clients that die."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster.gated_plane import GatedPlane, gate_planes
from e2e.cluster.nodes import Cluster, cluster
from e2e.cluster.peer_process import PeerProcess
from e2e.harness import Process, eventually, path_hashes

WAIT_S = 20
BLOCKS = 40


class Scene:
    """A puller in this process, with a gate; owners are processes."""

    def __init__(self, made: Cluster, planes: dict[str, GatedPlane]) -> None:
        self._made = made
        self.b = made.start(9)
        eventually(lambda: self.b.server.name in planes, "the data plane is open")
        self.plane = planes[self.b.server.name]
        self.owners: list[PeerProcess] = []

    def owner(self, number: int = 0, **options: Any) -> PeerProcess:
        """Another life of it when it has the number of one that died."""
        name, registry = f"{self._made.prefix}_{number}", self._made.registry
        owner = PeerProcess(name, f"n{number}", registry, **options)
        self.owners.append(owner)
        return owner

    def wait_readable(self, seed: int = 0) -> None:
        """Until a lookup here finds the path of an owner."""
        path = path_hashes(BLOCKS, seed)
        eventually(lambda: self.b.client.query(path).common_hit == BLOCKS, "the path is found")

    def pull(self, seed: int = 0, **options: Any) -> int:
        """The hit of a pull whose bytes are right."""
        path = path_hashes(BLOCKS, seed)
        result = self.b.client.pull_async(path, **options).wait(WAIT_S)
        assert self.b.wrong(path[: result.common_hit], result.full_slots) == 0
        result.finalize()
        return int(result.common_hit)

    def figures(self) -> dict[str, int]:
        found: dict[str, int] = self.b.server.status()["cluster"]["pulls"]
        return found


@pytest.fixture(params=["shm", "tcp"])
def scene(
    request: pytest.FixtureRequest,
    region_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Scene]:
    """Slots are read over shared memory, or over streams that need the owner to run."""
    planes = gate_planes(monkeypatch)
    if request.param == "tcp":
        refuse_shared_memory(monkeypatch)
    with cluster(region_name, tmp_path) as made:
        running = Scene(made, planes)
        try:
            yield running
        finally:
            for owner in running.owners:
                owner.kill()
            leave_nothing(region_name)


def refuse_shared_memory(patch: pytest.MonkeyPatch) -> None:
    from radixshmem_core.cluster.planes import ways
    from radixshmem_core.errors import ServerNotReady

    class StreamsOnly:
        tcp = staticmethod(ways._core.PeerSlots.tcp)

        @staticmethod
        def shm(*told: object) -> None:
            raise ServerNotReady("another machine")

    class Core:
        PeerSlots = StreamsOnly

    patch.setattr(ways, "_core", Core)


def leave_nothing(prefix: str) -> None:
    for file in Path("/dev/shm").glob(f"{prefix[1:]}_0*"):  # of owners that were killed
        file.unlink()


def begun(scene: Scene, path: Any, **options: Any) -> Any:
    scene.plane.gate.clear()
    before = scene.plane.reads
    job = scene.b.client.pull_async(path, **options)
    eventually(lambda: scene.plane.reads > before, "the transfer begins")
    return job


def test_a_stopped_owner_costs_its_part_until_the_deadline(scene: Scene) -> None:
    owner = scene.owner()
    owner.put(BLOCKS)
    owner.put(BLOCKS, 1)
    scene.wait_readable()
    scene.wait_readable(1)
    assert scene.pull(1) == BLOCKS  # connections are made
    path = path_hashes(BLOCKS)
    scene.b.insert(path[:10])
    job = begun(scene, path, timeout_ms=500)
    owner.signal(signal.SIGSTOP)
    scene.plane.gate.set()
    result = job.wait(WAIT_S)
    assert (result.common_hit, scene.b.wrong(path[:10], result.full_slots)) == (10, 0)
    result.finalize()
    assert scene.pull(timeout_ms=300) == 10  # not even a lease
    owner.signal(signal.SIGCONT)
    eventually(lambda: scene.figures()["kept_back_slots"] == 0, "the slots come back")
    eventually(lambda: scene.pull() == BLOCKS, "pulls work again")
    eventually(lambda: scene.b.client.mempool_used() == 2 * BLOCKS, "no slot is lost")


def test_an_owner_that_dies_in_a_transfer_gives_nothing(scene: Scene) -> None:
    owner = scene.owner()
    owner.put(BLOCKS)
    scene.wait_readable()
    job = begun(scene, path_hashes(BLOCKS), timeout_ms=5000)
    owner.kill()
    scene.plane.gate.set()
    result = job.wait(WAIT_S)
    assert (result.common_hit, result.remote_blocks) == (0, 0)
    eventually(lambda: scene.b.client.mempool_used() == 0, "no slot is lost")


def test_another_life_of_an_owner_is_not_taken_for_the_old_one(scene: Scene) -> None:
    """It holds a lease of another pull with the number that the old one gave, if numbers began
    anew; and its slots hold other bytes."""
    owner = scene.owner()
    owner.put(BLOCKS)
    scene.wait_readable()
    job = begun(scene, path_hashes(BLOCKS), timeout_ms=60_000)
    owner.kill()
    owner = scene.owner()
    owner.put(BLOCKS, 1)
    scene.wait_readable(1)
    second = begun(scene, path_hashes(BLOCKS, 1), timeout_ms=60_000)
    scene.plane.gate.set()
    assert job.wait(WAIT_S).common_hit == 0
    result = second.wait(WAIT_S)
    assert result.common_hit == BLOCKS
    assert scene.b.wrong(path_hashes(BLOCKS, 1), result.full_slots) == 0
    result.finalize()


def test_a_lease_that_ran_out_is_worth_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner needs its slots for others while a slow transfer reads them."""
    monkeypatch.setattr("radixshmem_core.cluster.pulls._MAX_LEASE_S", 0.2)
    owner = scene.owner()
    owner.put(BLOCKS)
    scene.wait_readable()
    job = begun(scene, path_hashes(BLOCKS), timeout_ms=20_000)
    eventually(
        lambda: owner.ask("evict 256") == "ok" and owner.ask(f"hit {BLOCKS} 0") == "0",
        "the lease ends",
    )
    owner.put(200, 5)
    scene.plane.gate.set()
    result = job.wait(WAIT_S)
    assert (result.common_hit, scene.figures()["leases_lost"]) == (0, 1)


PULLER = """
import sys, time
import numpy as np
from radixshmem_core.client import RadixClient
client = RadixClient(sys.argv[1])  # its connections are made meanwhile
path = np.random.default_rng(0).integers(0, 2**64, int(sys.argv[2]), np.uint64)
while (job := client.pull_async(path, timeout_ms=600_000)).done():
    job.wait().finalize()
    time.sleep(0.01)
print("under way", flush=True)
sys.stdin.readline()
"""


def test_a_killed_client_leaves_no_pins(scene: Scene) -> None:
    owner = scene.owner()
    owner.put(BLOCKS)
    scene.wait_readable()
    scene.plane.gate.clear()
    client = Process("-c", PULLER, scene.b.server.name, str(BLOCKS))
    assert client.line() == "under way"
    eventually(lambda: scene.plane.reads, "the transfer begins")
    client.kill()
    eventually(lambda: scene.figures()["kept_back_slots"] == BLOCKS, "the job is given up")
    scene.plane.gate.set()
    eventually(lambda: scene.b.client.mempool_used() == 0, "no slot is lost")
