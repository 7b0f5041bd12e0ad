# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""How pull jobs end: whatever happens, with right bytes or fewer blocks, and nothing kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.cluster.gated_plane import GatedPlane, gate_planes
from e2e.cluster.nodes import Cluster, Hashes, Node, cluster
from e2e.harness import GEOMETRY, eventually

from radixshmem_core.client import RadixClient
from radixshmem_core.pull import PullJob, PullResult

WAIT_S = 20
Pair = Callable[..., tuple[Node, Node, GatedPlane]]


@pytest.fixture
def pair(
    region_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Cluster, Pair]]:
    """Makes an owner, a puller, and the gate of the puller's data plane."""
    planes = gate_planes(monkeypatch)
    with cluster(region_name, tmp_path) as made:

        def make(**options: object) -> tuple[Node, Node, GatedPlane]:
            a, b = made.start(0), made.start(1, **options)
            made.settle()
            return a, b, planes[b.server.name]

        yield make


def put(node: Node, count: int, seed: int = 0) -> Hashes:
    path = node.put(count, seed)
    node.flush()
    return path


def wait_found(b: Node, path: Hashes) -> None:
    """A busy machine may let a single lookup pass a peer over."""
    eventually(lambda: b.client.query(path).common_hit == len(path), "the path is found")


def under_way(b: Node, plane: GatedPlane, path: Hashes, **options: object) -> PullJob:
    """A pull whose transfer waits at the gate."""
    wait_found(b, path)
    plane.gate.clear()
    before = plane.reads
    job = b.client.pull_async(path, **options)
    eventually(lambda: plane.reads > before, "the transfer begins")
    assert not job.done()
    return job


def check(node: Node, path: Hashes, result: PullResult, hit: int) -> None:
    assert result.common_hit == hit
    assert node.wrong(path[:hit], result.full_slots) == 0
    result.finalize()


def pulls(node: Node) -> dict[str, int]:
    figures: dict[str, int] = node.server.status()["cluster"]["pulls"]
    return figures


def settled(node: Node, used: int) -> None:
    """All slots that are not in the tree have come back, and nothing is kept back or pinned."""
    eventually(lambda: node.client.mempool_used() == used, f"{used} slots are in use")
    assert pulls(node)["kept_back_slots"] == 0
    eventually(lambda: node.client._index.pins() == [], "the server has heard of the end")
    node.client.reset()  # a pin would keep slots
    eventually(lambda: node.client.mempool_used() == 0, "no slot is pinned")


def test_a_late_transfer_keeps_its_slots_back_until_it_is_over(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixshmem_core.pull_channel._GRACE_S", 600)
    a, b, plane = pair()
    path = put(a, 40)
    b.insert(path[:10])
    job = under_way(b, plane, path, timeout_ms=200)
    check(b, path, job.wait(WAIT_S), 10)
    eventually(lambda: pulls(b)["kept_back_slots"] == 30, "30 slots are kept back")
    eventually(lambda: a.server.status()["cluster"]["leases"]["held"] == 0, "the lease ends")
    plane.gate.set()
    eventually(lambda: pulls(b)["kept_back_slots"] == 0, "the slots come back")
    check(b, path, b.client.pull_async(path).wait(WAIT_S), 40)
    settled(b, 40)


def test_no_time_is_the_local_hit_at_once(pair: Pair) -> None:
    a, b, plane = pair()
    path = put(a, 20)
    job = b.client.pull_async(path, timeout_ms=0)
    assert job.done()
    check(b, path, job.wait(), 0)
    assert plane.reads == 0
    with pytest.raises(ValueError, match="timeout_ms is -1"):
        b.client.pull_async(path, timeout_ms=-1)


def test_cancel_before_the_lease_while_it_flows_and_after(pair: Pair) -> None:
    a, b, plane = pair()
    path = put(a, 30)
    called: list[PullJob] = []
    b.client.pull_async(path).cancel()
    job = under_way(b, plane, path)
    job.add_done_callback(called.append)
    job.cancel()
    job.cancel()
    assert (job.done(), called) == (True, [job])
    with pytest.raises(RuntimeError, match="was cancelled"):
        job.wait()
    plane.gate.set()
    eventually(lambda: pulls(b)["kept_back_slots"] == 0, "the slots come back")
    job = b.client.pull_async(path)
    eventually(job.done, "the pull is done")
    job.cancel()
    settled(b, 30)


def test_wait_gives_up_but_the_job_does_not(pair: Pair) -> None:
    a, b, plane = pair()
    path = put(a, 30)
    job = under_way(b, plane, path)
    called = threading.Event()
    job.add_done_callback(lambda job: called.set())
    with pytest.raises(TimeoutError, match=r"not done after 0.01 s"):
        job.wait(0.01)
    assert not called.is_set()
    plane.gate.set()
    check(b, path, job.wait(WAIT_S), 30)
    assert called.wait(WAIT_S)
    settled(b, 30)


def test_a_pull_without_lock_pins_nothing(pair: Pair) -> None:
    a, b, _ = pair()
    path = put(a, 30)
    result = b.client.pull_async(path, lock=False).wait(WAIT_S)
    assert (result.common_hit, b.wrong(path, result.full_slots)) == (30, 0)
    settled(b, 30)


def test_a_saturated_client_waits_for_room_or_takes_what_is_local(pair: Pair) -> None:
    a, b, plane = pair()
    paths = [put(a, 10, seed) for seed in range(3)]
    with RadixClient(b.server.name, max_outstanding=1) as client:
        one = Node(b.server, client)
        eventually(lambda: one.reads(a), "the client reads the owner")
        first = under_way(one, plane, paths[0])
        at_once = client.pull_async(paths[1], block=False)
        assert (at_once.done(), at_once.wait().common_hit, client.saturated) == (True, 0, 1)
        late = client.pull_async(paths[1], timeout_ms=50)
        assert (late.done(), late.wait().common_hit, client.saturated) == (True, 0, 2)
        plane.gate.set()
        jobs: list[PullJob] = []
        waiting = threading.Thread(target=lambda: jobs.append(client.pull_async(paths[1])))
        waiting.start()
        eventually(lambda: client._open_jobs._waiting == 1, "a thread waits for room")
        check(one, paths[0], first.wait(WAIT_S), 10)
        waiting.join(WAIT_S)
        check(one, paths[1], jobs[0].wait(WAIT_S), 10)
        assert client.saturated == 2


def test_a_server_with_too_many_jobs_gives_what_is_local(pair: Pair) -> None:
    a, b, plane = pair(max_pending_jobs=1)
    paths = [put(a, 10, seed) for seed in range(2)]
    first = under_way(b, plane, paths[0])
    check(b, paths[1], b.client.pull_async(paths[1]).wait(WAIT_S), 0)
    plane.gate.set()
    check(b, paths[0], first.wait(WAIT_S), 10)


def test_a_job_waits_for_its_turn_no_longer_than_its_deadline(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixshmem_core.pull_channel._GRACE_S", 600)  # the server's word is seen
    a, b, plane = pair(max_inflight=1)
    paths = [put(a, 10, seed) for seed in range(3)]
    first = under_way(b, plane, paths[0])
    check(b, paths[1], b.client.pull_async(paths[1], timeout_ms=100).wait(WAIT_S), 0)
    second = b.client.pull_async(paths[2])
    assert plane.reads == 1
    plane.gate.set()
    check(b, paths[0], first.wait(WAIT_S), 10)
    check(b, paths[2], second.wait(WAIT_S), 10)


def test_what_the_owner_evicted_meanwhile_is_not_pulled(pair: Pair) -> None:
    a, b, plane = pair(max_inflight=1)
    other = put(a, 10, 1)
    path = put(a, 40)
    first = under_way(b, plane, other)  # the room is taken: the next job asks for its lease later
    second = b.client.pull_async(path)
    a.client.query(other)  # the path is what goes first
    total = a.client.mempool_total()
    taken = a.client.allocate_slots(total - 30)
    left = a.client.query(path, local_only=True).common_hit
    assert left < 40
    plane.gate.set()
    check(b, other, first.wait(WAIT_S), 10)
    check(b, path, second.wait(WAIT_S), left)
    a.client.recycle_slots(taken)


def test_a_reset_of_the_owner_during_the_transfer_discards_it(pair: Pair) -> None:
    a, b, plane = pair()
    path = put(a, 30)
    job = under_way(b, plane, path)
    a.client.reset()
    plane.gate.set()
    check(b, path, job.wait(WAIT_S), 0)
    assert pulls(b)["leases_lost"] == 1
    assert b.client.transfer_failures == 1
    settled(b, 0)


def test_a_reset_of_the_cluster_during_the_transfer_discards_it(pair: Pair) -> None:
    a, b, plane = pair()
    path = put(a, 30)
    job = under_way(b, plane, path)
    a.client.reset(cluster=True)
    plane.gate.set()
    check(b, path, job.wait(WAIT_S), 0)
    assert b.client.query(path).common_hit == 0


def test_a_full_node_takes_what_fits(pair: Pair) -> None:
    a, b, _ = pair()
    path = put(a, 40)
    kept = b.client.allocate_slots(b.client.mempool_total() - 25)
    result = b.client.pull_async(path).wait(WAIT_S)
    assert (result.remote_blocks, b.client.staging_shortfalls) == (25, 1)
    check(b, path, result, 25)
    b.client.recycle_slots(kept)
    check(b, path, b.client.pull_async(path).wait(WAIT_S), 40)
    settled(b, 40)


def test_a_path_that_is_lost_here_meanwhile_takes_no_tail(pair: Pair) -> None:
    a, b, plane = pair()
    path = put(a, 40)
    b.insert(path[:15])
    job = under_way(b, plane, path, lock=False)
    b.client.reset()
    plane.gate.set()
    job.wait(WAIT_S)
    assert b.client.promotion_shortfalls == 1
    assert b.client.query(path, local_only=True).common_hit == 0
    settled(b, 0)


def test_a_closed_client_completes_its_jobs_and_leaves_nothing(pair: Pair) -> None:
    a, b, plane = pair()
    path = put(a, 30)
    client = RadixClient(b.server.name)
    one = Node(b.server, client)
    eventually(lambda: one.reads(a), "the client reads the owner")
    job = under_way(one, plane, path)
    client.close()
    assert job.done()
    plane.gate.set()
    settled(b, 0)


def test_a_closed_server_ends_its_jobs(pair: Pair) -> None:
    a, b, plane = pair()
    path = put(a, 30)
    job = under_way(b, plane, path)
    b.server.close()
    assert job.wait(WAIT_S).common_hit == 0


def test_pins_of_a_job_that_nobody_collects_go(pair: Pair) -> None:
    """The channel is taken away from the job, so that it cannot say that it is done."""
    a, b, _ = pair(job_ttl_s=1.0)
    path = put(a, 30)
    b.client._pulls._send_end = lambda job_id: None
    job = b.client.pull_async(path, lock=False)
    assert job.wait(WAIT_S).common_hit == 30
    b.client.reset()
    assert b.client.mempool_used() == 30  # pinned by the server
    eventually(lambda: b.client.mempool_used() == 0, "the pins of the job go")


def test_without_a_pin_left_the_job_completes(pair: Pair) -> None:
    a, b, plane = pair(max_pins=64)
    path = put(a, 30)
    b.insert(path[:10])
    mine = b.put(1, 7)
    job = under_way(b, plane, path)
    pins = []
    while not (pin := b.client.query(mine, local_only=True, lock=True)).status:
        pins.append(pin)
    plane.gate.set()
    check(b, path, job.wait(WAIT_S), 10)  # pinned from the beginning; the rest cannot be
    for pin in pins:
        pin.finalize()
    check(b, path, b.client.pull_async(path).wait(WAIT_S), 30)


def test_another_peer_is_tried_when_one_fails(
    region_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planes = gate_planes(monkeypatch)
    with cluster(region_name, tmp_path) as made:
        a, b, c = (made.start(number) for number in range(3))
        made.settle()
        path = put(a, 40)
        c.insert(path[:30])
        c.flush()
        plane = planes[b.server.name]
        plane.failing.add(a.rank)
        wait_found(b, path)
        result = b.client.pull_async(path).wait(WAIT_S)
        assert (result.source_rank, b.client.transfer_failures) == (c.rank, 1)
        check(b, path, result, 30)
        plane.failing.clear()
        connected: list[int] = []
        connect = plane.connect
        plane.connect = lambda peer, told: connected.append(peer.rank) or connect(peer, told)
        result = b.client.pull_async(path).wait(WAIT_S)
        assert (result.source_rank, result.remote_blocks) == (a.rank, 10)
        check(b, path, result, 40)
        assert connected == [a.rank]  # its metadata may have been others by then


def test_another_peer_is_tried_when_one_has_less_than_it_claimed(
    region_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planes = gate_planes(monkeypatch)
    with cluster(region_name, tmp_path) as made:
        a, b, c = made.start(0), made.start(1, max_inflight=1), made.start(2)
        made.settle()
        other = put(c, 5, 1)
        path = put(a, 40)
        c.insert(path[:30])
        c.flush()
        plane = planes[b.server.name]
        first = under_way(b, plane, other)  # the room is taken: the next job asks for leases later
        wait_found(b, path)
        second = b.client.pull_async(path)
        assert second.planned_hit > 30
        a.client.reset()
        plane.gate.set()
        check(b, other, first.wait(WAIT_S), 5)
        result = second.wait(WAIT_S)
        assert result.source_rank == c.rank
        check(b, path, result, 30)


def test_a_server_alone_completes_at_once(region_name: str, tmp_path: Path) -> None:
    with cluster(region_name, tmp_path) as made:
        node = made.start(0, GEOMETRY)
        path = node.put(10)
        job = node.client.pull_async(path)
        assert job.done()
        check(node, path, job.wait(), 10)
