# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Clusters of servers on loopback: in this process, or as processes that can be killed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from e2e.harness import DEADLINE_S, GEOMETRY, eventually, path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer
from radixshmem_core.values import ComponentType, Geometry

Hashes = npt.NDArray[np.uint64]
FULL, SWA, MAMBA = ComponentType


def fill(hashes: Hashes, size: int = 4000) -> npt.NDArray[np.uint8]:
    """[blocks, size] uint8: bytes that only these blocks have."""
    lanes = np.arange((size + 7) // 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (hashes[:, None] ^ lanes[None, :]).view(np.uint8)[:, :size]


@dataclasses.dataclass
class Node:
    """A server in this process, and a client of it."""

    server: RadixServer
    client: RadixClient

    @property
    def rank(self) -> int:
        return self.client.status().rank

    def put(self, count: int, seed: int = 0) -> Hashes:
        """Insert a path of its own with its bytes."""
        return self.insert(path_hashes(count, seed))

    def insert(self, hashes: Hashes, start: int = 0) -> Hashes:
        slots = self.client.allocate_slots(len(hashes) - start)
        assert len(slots) == len(hashes) - start
        self.write(hashes[start:], slots)
        assert self.client.insert(hashes, slots, start).error == 0
        return hashes

    def put_aux(self, hashes: Hashes, component: ComponentType) -> None:
        """A SWA window or a MAMBA checkpoint at the end of a path that is here."""
        pool = self.client.geometry["pools"][component.name.lower()]
        count = min(pool["window_blocks"], len(hashes)) if component == SWA else 1
        slots = self.client.allocate_slots(count, component)
        assert len(slots) == count
        self.write(hashes[-count:], slots, component)
        assert self.client.insert(hashes, slots, component=component).error == 0

    def write(self, hashes: Hashes, slots: npt.NDArray[np.int32], component: int = FULL) -> None:
        for slot, row in zip(slots.tolist(), self.bytes_of(hashes, component), strict=True):
            self.client.slot_view(slot, component)[: len(row)] = row.tobytes()

    def bytes_of(self, hashes: Hashes, component: int = FULL) -> npt.NDArray[np.uint8]:
        pools = self.client.geometry["pools"]
        size = pools[ComponentType(component).name.lower()]["slot_bytes"]
        return fill(hashes ^ np.uint64(component), size)

    def wrong(self, hashes: Hashes, slots: npt.NDArray[np.int32], component: int = FULL) -> int:
        """How many of these slots do not hold the bytes of these blocks."""
        rows = self.bytes_of(hashes, component)
        return sum(
            bytes(self.client.slot_view(slot, component)[: len(row)]) != row.tobytes()
            for slot, row in zip(slots.tolist(), rows, strict=True)
        )

    def flush(self) -> None:
        assert self.client.flush(DEADLINE_S)

    def reads(self, *others: Node) -> bool:
        """Whether this node's client is connected to all of them and to itself."""
        rows = self.client.peer_connections()
        wanted = {node.rank for node in (*others, self)}
        return wanted <= {row["rank"] for row in rows if not row["suspect"]}


class Cluster:
    """Nodes n0, n1, ... with one registry; a test's own names in /dev/shm."""

    def __init__(self, prefix: str, registry: str) -> None:
        self.prefix = prefix
        self.registry = registry
        self._stack = ExitStack()
        self.nodes: list[Node] = []

    def config(self, number: int, **more: object) -> ServerConfig:
        options = {
            "data_bytes": "1M",
            "settle_ms": 50,
            "node_name": f"n{number}",
            "prefault": False,
            "background_evict_ratio": 0.0,
            "transfer_backend": "builtin",
            **more,
        }
        return ServerConfig(f"{self.prefix}_{number}", registry=self.registry, **options)

    def start(self, number: int, geometry: Geometry | None = GEOMETRY, **more: object) -> Node:
        server = self._stack.enter_context(RadixServer(self.config(number, **more)))
        client = self._stack.enter_context(RadixClient(server.name, geometry))
        self.nodes.append(Node(server, client))
        return self.nodes[-1]

    def stop(self, node: Node) -> None:
        """A clean end of one node."""
        self.nodes.remove(node)
        node.client.close()
        node.server.close()

    def settle(self, *nodes: Node) -> None:
        """Until all read all, and all keys are where they belong."""
        nodes = nodes or tuple(self.nodes)
        self.settle_reads(*nodes)
        for node in nodes:
            eventually(lambda n=node: self.placed(n, len(nodes)), "the directory is placed")

    @staticmethod
    def settle_reads(*nodes: Node) -> None:
        """Until the client of each is connected to all of them."""
        for node in nodes:
            eventually(lambda n=node: n.reads(*nodes), "a node reads the others")

    @staticmethod
    def placed(node: Node, count: int) -> bool:
        report = node.server.status()["cluster"]
        rows = report["nodes"]
        return (
            sum(row["state"] in ("self", "live") for row in rows) == count
            and not any(row.get("warming") for row in rows)
            and report["directory"]["read_members"] == count
        )

    def close(self) -> None:
        self._stack.close()


@contextmanager
def cluster(prefix: str, folder: Path) -> Iterator[Cluster]:
    made = Cluster(prefix, f"file://{folder}")
    try:
        yield made
    finally:
        made.close()
