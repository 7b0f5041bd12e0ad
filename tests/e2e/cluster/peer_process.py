# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A server with a client in a process of its own, that can be stopped and killed.

It says "ready", and answers each line of stdin with one: `put COUNT SEED` inserts a path with its
bytes and publishes it, `reset` drops the tree, `evict COUNT` lets others take that many slots.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from e2e.cluster.nodes import Node
from e2e.harness import GEOMETRY, Process, path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer


class PeerProcess(Process):
    """The starter's end."""

    _PROGRAM = (
        "import sys; sys.path.insert(0, sys.argv.pop(1));"
        "from e2e.cluster.peer_process import main; main(*sys.argv[1:])"
    )

    def __init__(self, name: str, node: str, registry: str, **options: Any) -> None:
        words = [f"{key}={value}" for key, value in options.items()]
        tests = str(Path(__file__).parents[2])
        super().__init__("-c", self._PROGRAM, tests, name, node, registry, *words)
        assert self.line() == "ready"

    def ask(self, text: str) -> str:
        self.tell(text)
        return self.line()

    def put(self, count: int, seed: int = 0) -> None:
        assert self.ask(f"put {count} {seed}") == "ok"


def main(name: str, node_name: str, registry: str, *words: str) -> None:
    options: dict[str, Any] = {}
    for word in words:
        key, value = word.split("=")
        options[key] = float(value) if "." in value else value
    config = ServerConfig(
        name,
        registry=registry,
        node_name=node_name,
        settle_ms=50,
        prefault=False,
        background_evict_ratio=0.0,
        **{"data_bytes": "1M", "transfer_backend": "builtin", **options},
    )
    with RadixServer(config) as server, RadixClient(server.name, GEOMETRY) as client:
        node = Node(server, client)
        print("ready", flush=True)
        for line in sys.stdin:
            command, *rest = line.split()
            numbers = [int(word) for word in rest]
            if command == "put":
                node.put(numbers[0], numbers[1])
                node.flush()
            elif command == "evict":
                client.recycle_slots(client.allocate_slots(numbers[0]))
            elif command == "reset":
                client.reset()
            else:
                path = path_hashes(numbers[0], numbers[1])
                print(client.query(path, local_only=True).common_hit, flush=True)
                continue
            print("ok", flush=True)
