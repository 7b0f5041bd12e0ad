# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A server's cluster part begins and ends whole, also when a part of it fails or takes long."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster.gated_plane import GatedPlane, gate_planes
from e2e.cluster.nodes import Cluster, cluster
from e2e.harness import DEADLINE_S, GEOMETRY, Held, eventually

from radixshmem_core import _core
from radixshmem_core.client import RadixClient
from radixshmem_core.cluster import cluster as cluster_module
from radixshmem_core.cluster import ways_in, wire
from radixshmem_core.cluster.planes import PlaneMissing
from radixshmem_core.errors import RadixError
from radixshmem_core.server import RadixServer


@pytest.fixture
def made(region_name: str, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(region_name, tmp_path) as empty:
        yield empty


def _part(server: RadixServer) -> cluster_module.Cluster:
    assert server._work is not None
    assert server._work._cluster is not None
    return server._work._cluster


def _status(server: RadixServer) -> dict[str, Any]:
    report: dict[str, Any] = server.status()["cluster"]
    return report


class _Started(threading.Thread):
    """Runs it, and says whether it has ended by the deadline."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(target=work, daemon=True)
        self.start()

    def ends(self) -> bool:
        self.join(DEADLINE_S)
        return not self.is_alive()


def test_a_data_plane_that_is_not_installed_is_an_error_of_the_start(
    made: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "nixl is not installed; run: pip install nixl"
    monkeypatch.setattr("radixshmem_core.cluster.planes.nixl.why_missing", lambda: why)
    with pytest.raises(PlaneMissing, match=r"transfer_backend is nixl, but .*run: pip install"):
        RadixServer(made.config(0, transfer_backend="nixl")).start()


@pytest.mark.parametrize("error", [RadixError("no such device"), OSError(12, "No memory")])
def test_a_node_goes_on_without_a_data_plane_that_does_not_open(
    made: Cluster, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(*_: object) -> None:
        raise error

    other = made.start(0)
    monkeypatch.setattr(ways_in, "open_plane", broken)
    node = made.start(1)
    made.settle()
    mine, theirs = node.put(10, seed=1), other.put(10, seed=2)
    node.flush()
    other.flush()
    assert other.client.query(mine).common_hit == 10
    result = node.client.pull_async(theirs, timeout_ms=2000).wait(DEADLINE_S)
    assert result.common_hit == 0
    result.finalize()
    assert _status(node.server)["data_plane"] == ""
    assert _status(node.server)["data_plane_reason"] == f"none: {error}"
    node.client.reset(cluster=True)


def test_a_node_that_cannot_share_its_index_says_so_and_nothing_waits(
    made: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(_core.Responder, "start", broken)
    node = made.start(0)
    path = node.put(10)
    assert not node.client.flush(DEADLINE_S)
    with pytest.raises(RadixError, match=r"shares no index .*Too many open files"):
        node.client.reset(cluster=True)
    assert "Too many open files" in _status(node.server)["attach_error"]
    assert node.client.query(path).common_hit == 10


def test_a_reset_waits_for_an_index_that_is_just_being_shared(
    made: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = Held(monkeypatch, ways_in, "open_plane")
    node = made.start(0)
    path = node.put(10)
    assert opening.begun.wait(DEADLINE_S)
    reset = _Started(lambda: node.client.reset(cluster=True))
    reset.join(0.2)
    assert reset.is_alive()
    opening.go_on.set()
    assert reset.ends()
    assert node.client.query(path).common_hit == 0


def test_publishing_goes_on_after_an_error_that_nobody_expects(
    made: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, failed = _core.Publisher.collect, threading.Event()

    def fail_once(*arguments: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise ValueError("of no kind that is known")
        return collect(*arguments)

    monkeypatch.setattr(_core.Publisher, "collect", fail_once)
    node, other = made.start(0), made.start(1)
    made.settle()
    assert failed.is_set()
    path = node.put(10)
    eventually(lambda: other.client.query(path).common_hit == 10, "what was put is published")


def test_a_plane_that_opens_while_the_server_ends_is_closed(
    made: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Event()

    class Plane(GatedPlane):
        def close(self) -> None:
            super().close()
            closed.set()

    gate_planes(monkeypatch, Plane)
    opening = Held(monkeypatch, ways_in, "open_plane")
    server = RadixServer(made.config(0)).start()
    part = _part(server)
    with RadixClient(server.name, GEOMETRY):
        assert opening.begun.wait(DEADLINE_S)
    end = _Started(server.close)
    eventually(lambda: part._regions is None, "it detaches")
    opening.go_on.set()
    assert end.ends()
    assert closed.is_set()


def test_a_plane_that_does_not_close_leaves_nothing_else_open(
    made: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Plane(GatedPlane):
        def close(self) -> None:
            super().close()
            raise RadixError("nixl does not end")

    gate_planes(monkeypatch, Plane)
    node = made.start(0)
    node.flush()
    part = _part(node.server)
    responder = part._ways_in._responder
    assert responder is not None
    stopped = threading.Event()
    address, port = part._address, part._port

    class Responder:
        def __getattr__(self, name: str) -> Any:
            return getattr(responder, name)

        def stop(self) -> None:
            responder.stop()
            stopped.set()

    part._ways_in._responder = Responder()  # type: ignore[assignment]

    with pytest.raises(RadixError, match="nixl does not end"):
        node.server._call(part.close())
    assert stopped.is_set()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, port), DEADLINE_S).close()
    node.server._work._cluster = None  # type: ignore[union-attr]  # it has ended


def test_a_dial_of_a_thread_that_takes_too_long_is_given_up(
    made: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = threading.Event()

    async def never(_: int) -> socket.socket:
        try:
            return await asyncio.Future()
        finally:
            given_up.set()

    part = _part(made.start(0).server)
    monkeypatch.setattr(cluster_module, "_DIAL_TIMEOUT_S", 0.01)
    monkeypatch.setattr(part, "_dial_rank", never)
    with pytest.raises(TimeoutError, match=r"rank 7 was not reached within 0\.02 s"):
        part._dial_from_thread(7)
    assert given_up.wait(DEADLINE_S)


@pytest.mark.parametrize("end", ["close", "forget"])
def test_a_server_ends_while_its_tree_cannot_be_dropped(
    made: Cluster, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    tried = threading.Event()

    def held(_: object) -> None:
        tried.set()
        raise TimeoutError("a stopped process holds the lock")

    node = made.start(0)
    node.put(10)
    node.flush()

    with monkeypatch.context() as patch:
        patch.setattr(_core.Index, "reset", held)
        part, work = _part(node.server), node.server._work
        assert part._shared is not None
        assert work is not None
        raised = wire.EpochRaised(key=part._shared.key, epoch=1)
        asyncio.run_coroutine_threadsafe(part._answer(raised), part._loop)
        assert tried.wait(DEADLINE_S)
        forget = lambda: node.server._call(work._forget_geometry())  # noqa: E731
        assert _Started(node.server.close if end == "close" else forget).ends()
