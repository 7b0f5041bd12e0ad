# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Over which transport a process reads a peer, and what it says of those it does not use."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.harness import eventually

from radixshmem_core.cluster import connections
from radixshmem_core.cluster.connections import Connections
from radixshmem_core.errors import RadixError, ServerNotReady
from radixshmem_core.messages import Lookups

RANK, LIFE = 3, 77


class Peers:
    """Stands for _core.PeerIndex: one peer, which the `works` transports reach."""

    def __init__(self, works: set[str]) -> None:
        self.works = works
        self.tried: list[str] = []
        self.transport = ""

    def living(self) -> list[tuple[int, int]]:
        return [(RANK, LIFE)]

    def connections(self) -> list[dict[str, Any]]:
        row = {"rank": RANK, "incarnation": LIFE, "transport": self.transport, "suspect": False}
        return [row | {"reads": 0}] if self.transport else []

    def wanted(self) -> list[int]:
        return []

    def adopt_own(self, *_: Any) -> bool:
        return False

    def take_back(self, *_: Any) -> bool:
        return False

    def adopt_shm(self, *_: Any) -> None:
        self._adopt("shm")

    def adopt_verbs(self, rank: int, incarnation: int, fd: int, device: str, ms: int) -> None:
        socket.socket(fileno=fd).close()
        assert device == "device of mlx5_0 with gid 3"
        self._adopt("verbs")

    def adopt_tcp(self, rank: int, incarnation: int, fd: int, ms: int) -> None:
        socket.socket(fileno=fd).close()
        self._adopt("tcp")

    def _adopt(self, transport: str) -> None:
        self.tried.append(transport)
        if transport not in self.works:
            raise ServerNotReady(f"{transport} is refused")
        self.transport = transport

    def break_off(self) -> None:
        self.transport = ""
        self.tried.clear()


Begin = Callable[..., tuple[Connections, Peers]]


class Device(str):
    def describe(self) -> str:
        return str(self)


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    begun: list[Connections] = []

    def dial(self: Connections, rank: int, incarnation: int) -> tuple[str, socket.socket]:
        ours, other = socket.socketpair()
        other.close()
        return "/peer", ours

    def make(transport: str, *works: str, device: str = "mlx5_0") -> tuple[Connections, Peers]:
        peers = Peers(set(works))
        monkeypatch.setattr(connections._core, "PeerIndex", lambda *_: peers)
        lookups = Lookups(transport=transport, timeout_us=0, index_dev=device, gid_idx=3)
        begun.append(Connections(None, "/no.sock", lookups))  # type: ignore[arg-type]
        return begun[-1], peers

    def open_device(name: str, gid: int) -> Device:
        if name == "none":
            raise ValueError("there is no RDMA device none")
        return Device(f"device of {name} with gid {gid}")

    monkeypatch.setattr(Connections, "_dial", dial)
    monkeypatch.setattr(connections, "open_device", open_device)
    yield make
    for each in begun:
        each.close()


def row_of(made: Connections, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        return next((row for row in made.figures() if wanted(row)), None)

    eventually(found, "the row is as wanted")
    row = found()
    assert row is not None
    return row


def connected(made: Connections) -> tuple[str, str]:
    """Transport and why, once both are there."""
    row = row_of(made, lambda row: row["transport"] and row["why"])
    return row["transport"], row["why"]


def test_auto_is_shm_then_verbs_then_tcp(begin: Begin) -> None:
    made, _ = begin("auto", "shm", "verbs", "tcp")
    assert connected(made) == ("shm", "its memory is on this machine")
    made, _ = begin("auto", "verbs", "tcp")
    assert connected(made) == ("verbs", "RDMA to it works; not shm: shm is refused")
    made, peers = begin("auto", "tcp")
    why = "a stream to it works; not shm: shm is refused; not verbs: verbs is refused"
    assert connected(made) == ("tcp", why)
    assert peers.tried == ["shm", "verbs", "tcp"]


def test_auto_tries_no_verbs_without_a_device(begin: Begin) -> None:
    made, peers = begin("auto", "verbs", "tcp", device="")
    assert connected(made)[0] == "tcp"
    assert peers.tried == ["shm", "tcp"]


@pytest.mark.parametrize("transport", ["shm", "verbs", "tcp"])
def test_one_transport_alone(begin: Begin, transport: str) -> None:
    made, peers = begin(transport, "shm", "verbs", "tcp")
    assert connected(made)[0] == transport
    assert peers.tried == [transport]


@pytest.mark.parametrize("transport", ["shm", "verbs", "tcp"])
def test_one_transport_alone_that_does_not_work_says_so(begin: Begin, transport: str) -> None:
    made, peers = begin(transport, *({"shm", "verbs", "tcp"} - {transport}))
    row = row_of(made, lambda row: row["why"])
    assert (row["rank"], row["transport"], row["suspect"]) == (RANK, "", True)
    assert row["why"] == f"not {transport}: {transport} is refused"
    peers.works.add(transport)
    assert connected(made)[0] == transport


def test_a_device_that_this_process_cannot_open_is_told(begin: Begin) -> None:
    made, _ = begin("auto", "verbs", "tcp", device="none")
    transport, why = connected(made)
    assert (transport, "not verbs: there is no RDMA device none" in why) == ("tcp", True)


def test_a_connection_that_breaks_is_made_anew(begin: Begin) -> None:
    made, peers = begin("auto", "verbs", "tcp")
    assert connected(made)[0] == "verbs"
    peers.works.discard("verbs")
    peers.break_off()
    eventually(lambda: peers.transport == "tcp", "the stream takes over")
    assert peers.tried == ["shm", "verbs", "tcp"]


def test_a_peer_read_over_a_stream_is_tried_over_rdma_now_and_then(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_BETTER_S", 0.0)
    made, peers = begin("auto", "tcp")
    eventually(lambda: peers.tried.count("verbs") > 2, "verbs is tried again")
    assert connected(made)[0] == "tcp"
    peers.works.add("verbs")
    eventually(lambda: peers.transport == "verbs", "verbs is used")
    assert connected(made) == ("verbs", "RDMA to it works")


def test_an_index_that_is_closed_ends_the_thread(begin: Begin) -> None:
    made, peers = begin("auto", "shm")
    connected(made)

    def closed() -> list[tuple[int, int]]:
        raise RadixError("the index is closed")

    peers.living = closed  # type: ignore[method-assign]
    eventually(lambda: not made._thread.is_alive(), "the thread has ended")


class ManyPeers(Peers):
    """Peers 0, 1, ... that all transports reach."""

    def __init__(self, count: int) -> None:
        super().__init__(set())
        self.reads: dict[int, int] = {}  # by rank, of those that are connected
        self.lacked: list[int] = []
        self.count = count

    def living(self) -> list[tuple[int, int]]:
        return [(rank, LIFE) for rank in range(self.count)]

    def connections(self) -> list[dict[str, Any]]:
        row = {"incarnation": LIFE, "transport": "verbs", "suspect": False}
        return [row | {"rank": rank, "reads": reads} for rank, reads in self.reads.items()]

    def wanted(self) -> list[int]:
        lacked, self.lacked = self.lacked, []
        return lacked

    def drop(self, rank: int) -> None:
        self.reads.pop(rank, None)

    def adopt_own(self, rank: int, *_: Any) -> bool:
        self.reads[rank] = 0
        return True


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Connections, ManyPeers]]:
    """Their clock stands; nothing looks unless the test does."""
    peers = ManyPeers(3)
    monkeypatch.setattr(connections._core, "PeerIndex", lambda *_: peers)
    monkeypatch.setattr(connections, "_run", lambda *_: None)
    monkeypatch.setattr(connections, "_MAX_CONNECTIONS", 2)
    lookups = Lookups(transport="auto", timeout_us=0, index_dev="", gid_idx=-1)
    made = Connections(None, "/no.sock", lookups)  # type: ignore[arg-type]
    yield made, peers
    made.close()


def at(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    monkeypatch.setattr(connections.time, "monotonic", lambda: now)


def test_who_is_wanted_takes_the_place_of_the_least_used(
    many: tuple[Connections, ManyPeers], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, peers = many
    for now in (100.0, 101.0):
        at(monkeypatch, now)
        made.look()
    assert set(peers.reads) == {0, 1}
    peers.reads[0] += 1
    for now in (103.0, 103.5):  # nobody wants 2
        at(monkeypatch, now)
        made.look()
    assert set(peers.reads) == {0, 1}
    peers.lacked = [2]
    made.look()
    assert set(peers.reads) == {0, 2}
    at(monkeypatch, 103.9)
    peers.lacked = [1]  # both were read a moment ago
    made.look()
    assert set(peers.reads) == {0, 2}


def test_an_idle_queue_pair_is_closed_until_a_lookup_wants_it(
    many: tuple[Connections, ManyPeers], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, peers = many
    peers.count = 2
    for now in (100.0, 101.0):
        at(monkeypatch, now)
        made.look()
    peers.reads[1] += 1
    for now in (500.0, 800.0, 801.0):
        at(monkeypatch, now)
        made.look()
    assert set(peers.reads) == {1}
    assert "idle" in str(next(row["why"] for row in made.figures() if row["rank"] == 0))
    peers.lacked = [0]
    made.look()
    assert set(peers.reads) == {0, 1}
