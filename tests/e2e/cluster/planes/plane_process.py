# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A process with slots of its own and a data plane over them, which does what stdin says.

Usage: plane_process.py NAME BACKEND PROTOCOL SEED
Each line of stdin is a JSON object {"do": METHOD, ...}; each gets one line of JSON as an answer.
The slots hold the bytes of SEED; a model of them tells what every byte must be.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import logging
import os
import socket
import sys
import time
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from radixshmem_core.client import RadixClient
from radixshmem_core.cluster.planes import PeerKey, Transfer, open_plane
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import RadixError
from radixshmem_core.server import RadixServer
from radixshmem_core.store import SlotPoolConfig, SlotStore, SlotStoreConfig
from radixshmem_core.values import Geometry

SLOTS_BYTES = 16 << 20


@dataclass(frozen=True)
class Config:
    transfer_backend: str
    transfer_protocol: str
    transfer_dev: tuple[str, ...] = ()
    transfer_ip: str = ""
    transfer_port: int = 0
    gid_idx: int = -1


@functools.lru_cache(3)
def pattern(seed: int) -> npt.NDArray[np.uint8]:
    if seed == 0:
        return np.full(SLOTS_BYTES, 0xEE, np.uint8)
    return np.random.default_rng(seed).integers(0, 256, SLOTS_BYTES, np.uint8)


def no_dial(rank: int) -> socket.socket:
    raise RadixError(f"no stream to rank {rank}: the engines need none")


def slots_alone(name: str) -> types.SimpleNamespace:
    pool = SlotPoolConfig(SLOTS_BYTES // 4096, 4096)
    store = SlotStore.create(SlotStoreConfig(name, full=pool))
    return types.SimpleNamespace(store=store, identity=types.SimpleNamespace(hugepage_path=""))


def served(name: str) -> types.SimpleNamespace:
    """With an index, whose life tells whose slots they are. The server lives as long as this."""
    server = RadixServer(ServerConfig(name, data_bytes=SLOTS_BYTES, prefault=False)).start()
    client = RadixClient(name, Geometry(16, 4096, slot_align=4096))
    identity = types.SimpleNamespace(name=name, hugepage_path="")
    return types.SimpleNamespace(
        index=client._index, store=client.store, identity=identity, keep=(server, client)
    )


class Node:
    def __init__(self, name: str, backend: str, protocol: str, seed: int) -> None:
        regions: Any = served(name) if backend == "builtin" else slots_alone(name)
        self._store: SlotStore = regions.store
        self._bytes: Any = np.frombuffer(self._store.data_view(), np.uint8)
        self._model = pattern(seed).copy()
        self._bytes[:] = self._model
        self._transfers: dict[str, Transfer] = {}
        self._regions = regions
        config = Config(backend, protocol)
        self._plane, self._reason = open_plane(config, regions, "127.0.0.1", no_dial)

    def metadata(self) -> dict[str, Any]:
        metadata = base64.b64encode(self._plane.local_metadata()).decode()
        return {"metadata": metadata, "name": self._plane.name, "reason": self._reason}

    def connect(self, peer: list[int], metadata: str) -> None:
        self._plane.connect(PeerKey(*peer), base64.b64decode(metadata))

    def forget(self, peer: list[int]) -> None:
        self._plane.forget(PeerKey(*peer))

    def read(self, transfer: str, peer: list[int], blocks: list[list[int]]) -> None:
        self._transfers[transfer] = self._plane.read(PeerKey(*peer), *blocks)

    def wait(self, transfer: str, deadline_s: float) -> dict[str, str]:
        """Poll until it is over, or the deadline has passed."""
        end = time.monotonic() + deadline_s
        while (state := self._transfers[transfer].poll()) == "pending" and time.monotonic() < end:
            time.sleep(0.0005)
        if state != "pending":
            del self._transfers[transfer]
        return {"state": state}

    def expect(self, seed: int, blocks: list[list[int]]) -> None:
        """These blocks of the peer with that seed are here now."""
        theirs = pattern(seed)
        for remote, local, length in zip(*blocks, strict=True):
            self._model[local : local + length] = theirs[remote : remote + length]

    def do_not_care(self, blocks: list[list[int]]) -> None:
        for _, local, length in zip(*blocks, strict=True):
            self._model[local : local + length] = self._bytes[local : local + length]

    def wrong_bytes(self) -> dict[str, int]:
        return {"wrong": int(np.count_nonzero(self._bytes != self._model))}

    def break_connections(self) -> dict[str, int]:
        """What a firewall or a switch does: end every TCP connection of this process."""
        broken = 0
        for name in os.listdir("/proc/self/fd"):
            with (
                contextlib.suppress(OSError),  # no socket, or not connected
                socket.fromfd(int(name), socket.AF_INET, socket.SOCK_STREAM) as connection,
            ):
                if isinstance(connection.getpeername(), tuple):  # else a UNIX socket
                    connection.shutdown(socket.SHUT_RDWR)
                    broken += 1
        return {"broken": broken}

    def close(self) -> None:
        self._plane.close()


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    name, backend, protocol, seed = sys.argv[1:]
    node = Node(name, backend, protocol, int(seed))
    print("{}", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(node, request.pop("do"))(**request) or {}
        except (RadixError, ValueError) as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
