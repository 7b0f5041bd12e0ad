# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Many servers of one machine, all started at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster.nodes import Node
from e2e.harness import GEOMETRY, ServerProcess, eventually

from radixshmem_core.client import RadixClient
from radixshmem_core.messages import Status, StatusReply
from radixshmem_core.rpc import ask, socket_path

_DEADLINE_S = 120.0


def _rows(name: str) -> list[dict[str, Any]]:
    reply = ask(socket_path("", name), Status(), _DEADLINE_S)
    assert isinstance(reply, StatusReply)
    rows: list[dict[str, Any]] = reply.status["cluster"]["nodes"]
    return rows


def _all_live(name: str, count: int) -> bool:
    rows = _rows(name)
    return len(rows) == count and all(row["state"] in ("self", "live") for row in rows)


@pytest.mark.parametrize(
    ("count", "plane"),
    [
        (10, "builtin"),
        pytest.param(50, "builtin", marks=pytest.mark.slow),
        pytest.param(8, "mooncake", marks=pytest.mark.slow),
    ],
)
def test_all_become_ready_on_ports_of_their_own_and_share(
    region_name: str, tmp_path: Path, processes: Callable[..., Any], count: int, plane: str
) -> None:
    flags = (
        *("--registry", f"file://{tmp_path}", "--expected-min-nodes", str(count)),
        *("--data-bytes", "16M", "--transfer-backend", plane, "--no-prefault"),
    )
    names = [f"{region_name}_{number}" for number in range(count)]
    servers = [processes(ServerProcess, n, *flags, "--node-name", n[1:]) for n in names]
    for server in servers:
        server.event("waiting")
    with ExitStack() as ends, ThreadPoolExecutor(count) as threads:
        clients = list(threads.map(lambda name: RadixClient(name, GEOMETRY), names))
        for client in clients:
            ends.callback(client.close)
        for client in clients:
            assert client.wait_ready(_DEADLINE_S).world_size == count
        for name in names[:: count // 4]:
            eventually(lambda n=name: _all_live(n, count), "it reads all others", _DEADLINE_S)
        rows = _rows(names[0])
        assert len({row["address"] for row in rows}) == count
        assert {row["rank"] for row in rows} == set(range(count))
        nodes = [Node(None, clients[n]) for n in (0, count // 2, count - 1)]  # type: ignore[arg-type]
        paths = [node.put(20, seed=number) for number, node in enumerate(nodes)]
        for node in nodes:
            for path in paths:
                eventually(
                    lambda n=node, p=path: n.client.query(p).common_hit == 20,
                    "each finds the others'",
                    _DEADLINE_S,
                )
    assert [server.stop() for server in servers] == [0] * count
