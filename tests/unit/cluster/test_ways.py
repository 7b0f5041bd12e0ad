# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Which way the built-in data plane reads the slots of a peer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from radixshmem_core.cluster.planes import ways
from radixshmem_core.cluster.planes.rails import Rail
from radixshmem_core.cluster.planes.readers import Reader
from radixshmem_core.cluster.planes.ways import Told, Ways
from radixshmem_core.errors import RadixError, ServerNotReady


class Fabric:
    """Stands for _core, and tells which ways work."""

    def __init__(self) -> None:
        self.same_machine = False
        self.dead: set[str] = set()  # rails, "tcp"
        self.now = 100.0
        self.rails_asked: list[tuple[str, int]] = []
        self.PeerSlots = self

    def shm(self, *_: Any) -> str:
        if not self.same_machine:
            raise ServerNotReady("another machine")
        return "slots"

    def verbs(self, fd: int, device: str, rail: int, timeout_ms: int) -> str:
        socket.socket(fileno=fd).close()
        self.rails_asked.append((device, rail))
        if device in self.dead:
            raise ServerNotReady(f"the port of {device} is down")
        return "slots"

    def tcp(self, fd: int) -> str:
        socket.socket(fileno=fd).close()
        if "tcp" in self.dead:
            raise RadixError("no stream")
        return "slots"


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fabric]:
    made = Fabric()
    monkeypatch.setattr(ways, "_core", made)
    monkeypatch.setattr(ways.time, "monotonic", lambda: made.now)
    opened: list[Reader] = []
    original = Ways.open

    def keep(self: Ways) -> Reader:
        opened.append(original(self))
        return opened[-1]

    monkeypatch.setattr(Ways, "open", keep)
    yield made
    for reader in opened:
        Reader.close(reader)


RAILS = [Rail(name, name, number) for number, name in enumerate(["a", "b"], 1)]  # type: ignore[arg-type]


def to_peer(protocol: str = "", own: Any = RAILS, theirs: tuple[int, ...] = (1, 2)) -> Ways:
    def dial() -> socket.socket:
        ours, other = socket.socketpair()
        other.close()
        return ours

    return Ways(Told("/x", 1, "/x_data", "", 7, theirs), protocol, own, dial)


def readers(to: Ways) -> Any:
    return to.figures()["readers"]


def test_shared_memory_is_preferred_then_rails_then_a_stream(fabric: Fabric) -> None:
    fabric.same_machine = True
    to = to_peer()
    to.open()
    assert to.figures() == {"readers": {"shm": 1}, "why": ""}
    fabric.same_machine = False
    to = to_peer()
    to.open()
    assert to.figures() == {"readers": {"verbs a": 1}, "why": "not shm: another machine"}
    fabric.dead = {"a", "b"}
    to = to_peer()
    to.open()
    assert readers(to) == {"tcp": 1}
    assert to.figures()["why"] == (
        "not shm: another machine; not verbs a: the port of a is down; "
        "not verbs b: the port of b is down"
    )


def test_readers_spread_over_the_rails_each_to_the_peers_one_of_its_place(fabric: Fabric) -> None:
    to = to_peer(theirs=(0, 1))
    for _ in range(5):
        to.open()
    assert readers(to) == {"verbs a": 3, "verbs b": 2}
    assert fabric.rails_asked == [("a", 0), ("b", 1)] * 2 + [("a", 0)]


def test_a_peer_with_fewer_rails_is_read_from_all_of_ours(fabric: Fabric) -> None:
    to = to_peer(theirs=(3,))
    to.open(), to.open()
    assert fabric.rails_asked == [("a", 3), ("b", 3)]


def test_a_rail_that_dies_takes_its_readers_along_and_rests(fabric: Fabric) -> None:
    to = to_peer()
    first, second, third = to.open(), to.open(), to.open()
    assert not any(reader.superseded() for reader in (first, second, third))
    first.broke("no answer")
    first.close()
    assert (third.superseded(), second.superseded()) == (True, False)  # of the same rail, the other
    third.close()
    to.open()
    assert readers(to) == {"verbs b": 2}
    assert "not verbs a: no answer" in str(to.figures()["why"])
    fabric.now += 31
    to.open()
    assert readers(to) == {"verbs a": 1, "verbs b": 2}


def test_a_stream_is_left_when_a_rail_may_work_again(fabric: Fabric) -> None:
    fabric.dead = {"a", "b"}
    to = to_peer()
    stream = to.open()
    assert (readers(to), stream.superseded()) == ({"tcp": 1}, False)
    fabric.now += 31
    assert stream.superseded()
    fabric.dead.clear()
    stream.close()
    to.open()
    assert readers(to) == {"verbs a": 1}


def test_shared_memory_of_another_machine_is_not_tried_again(fabric: Fabric) -> None:
    to = to_peer(own=())
    stream = to.open()
    fabric.same_machine = True
    fabric.now += 1e6
    assert not stream.superseded()


def test_rdma_alone_and_tcp_alone(fabric: Fabric) -> None:
    fabric.same_machine = True
    to = to_peer("tcp")
    to.open()
    assert readers(to) == {"tcp": 1}
    to = to_peer("rdma")
    to.open()
    assert readers(to) == {"verbs a": 1}
    fabric.dead = {"a", "b"}
    to = to_peer("rdma")
    with pytest.raises(RadixError, match="not verbs a: the port of a is down; not verbs b"):
        to.open()
    fabric.dead.clear()
    to.open()  # a way that rests is tried where there is no other
    assert readers(to) == {"verbs a": 1}


def test_a_peer_without_rails_is_no_peer_over_rdma(fabric: Fabric) -> None:
    to = to_peer(theirs=())
    to.open()
    assert readers(to) == {"tcp": 1}
    assert "not verbs: the peer has no transfer_dev that works" in str(to.figures()["why"])
    with pytest.raises(RadixError, match="the peer has no transfer_dev"):
        to_peer("rdma", theirs=()).open()
