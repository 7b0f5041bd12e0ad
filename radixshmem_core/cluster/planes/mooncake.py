# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The data plane over Mooncake's transfer engine, with peer-to-peer handshakes.

The engine is driven so that its answers mean what `base` promises:

- A block is a request of its own, polled without waiting. (The batch calls spin until a timeout of
  their own, and then give up on reads that may still arrive.) The engine ends a read by itself when
  nothing has arrived for MC_TCP_PROGRESS_TIMEOUT_SEC.
- The first contact with a peer asks for its metadata, holding the engine's lock; a stopped peer
  would make that last a minute. So a thread of ours probes the peer first, which holds no lock, and
  meanwhile its transfers are pending and everybody else's go on. Another one cuts the connection
  when there is no answer: a peer that stops just after the probe delays others by 2 s at most.
- What the engine knows of an address it never asks again. So a server that comes back with the very
  port of an earlier one (1 in 2,000, and not within a minute) is refused: its bytes would be asked
  of whoever has the old data port now.

The engine listens on all addresses of the machine, at two ports that it picks itself, and takes
writes from anybody who reaches them: see docs/data_planes.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...errors import RadixError
from ...store import SlotStore
from .base import (
    Blocks,
    Memory,
    PeerKey,
    PlaneConfig,
    PlaneMissing,
    RemoteMemory,
    TransferState,
    checked_blocks,
)
from .devices import chosen_protocol

__all__ = ["MooncakePlane", "why_missing"]

_INSTALL = "run: pip install 'radixshmem[mooncake]' (or scripts/build_mooncake.sh)"
_LIBRARIES = {"libibverbs.so.1": "libibverbs1", "libnuma.so.1": "libnuma1"}  # not in the wheel
_DEFAULTS = {
    "MC_LOG_LEVEL": "ERROR",
    "MC_HANDSHAKE_CONNECT_TIMEOUT": "2",
    # A read without progress has failed. The batch calls' own timeout plays no part.
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "5",
    "MC_TCP_STATUS_TIMEOUT_SEC": "5",
    # How many blocks may wait for one peer: as many as there are, without a time limit.
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
    "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER": "65535",
    "MC_TCP_ADMISSION_TIMEOUT_MS": "600000",
}
_NO_BATCH = (0, 2**64 - 1)
_CONTACT_S = 2.0  # for the first answer of a peer
_CUT_AGAIN_S = 0.2
_CLOSE_S = 10.0  # longer than a first contact lasts, and than a read without progress
_CLOSE_POLL_S = 0.005

_log = logging.getLogger(__name__)


def why_missing() -> str:
    """What is missing to use this plane, with the command that brings it; empty: nothing.

    Looks for the package without importing it: an import starts threads.
    """
    if importlib.util.find_spec("mooncake") is None:
        return f"the package mooncake is not installed; {_INSTALL}"
    for library, package in _LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            return f"mooncake needs {library}; run: apt-get install {package}"
    return ""


@dataclass(eq=False)
class _Peer:
    remote: RemoteMemory
    open: bool = False  # the engine knows it: a read does not wait
    opening: bool = False
    waiting: list[_Transfer] = field(default_factory=list)  # for it to be open

    @property
    def endpoint(self) -> str:
        return _endpoint(self.remote)


@dataclass(eq=False)
class _Transfer:
    plane: MooncakePlane
    peer: _Peer
    blocks: Blocks
    stage: Literal["queued", "submitting", "posted"] = "queued"
    batches: list[int] = field(default_factory=list)  # what the engine has not ended yet
    failed: bool = False

    def poll(self) -> TransferState:
        return self.plane._poll(self)


class MooncakePlane:
    """See base.DataPlane. One for a process: the engine takes its options from the environment."""

    name = "mooncake"

    def __init__(self, store: SlotStore, config: PlaneConfig, address: str) -> None:
        """`address`: where peers reach this server, unless config names a transfer_ip."""
        host = config.transfer_ip or address
        self._memory = memory = Memory.of(store)
        self._engine: Any = _start_engine(config, host, memory)
        engine = f"{host}:{self._engine.get_rpc_port()}/{secrets.token_hex(8)}".encode()
        remote = RemoteMemory(self.name, memory.address, memory.data_bytes, engine)
        self._metadata = remote.encode()
        self._lock = threading.Lock()  # of all below, and of what peers and transfers hold
        self._peers: dict[PeerKey, _Peer] = {}
        self._told: dict[str, RemoteMemory] = {}  # to the engine, by endpoint
        self._in_flight: set[_Transfer] = set()
        self._closed = False
        self._users = 0  # threads that are in the engine
        self._first_contacts = 0  # of them, those that may hold the engine's lock for long

    def local_metadata(self) -> bytes:
        return self._metadata

    def connect(self, peer: PeerKey, metadata: bytes) -> None:
        remote = RemoteMemory.decode(self.name, metadata)
        with self._lock:
            told = self._told.get(_endpoint(remote), remote)
            if told != remote:
                raise RadixError(
                    f"the server at {_endpoint(remote)} has the mooncake port of an earlier one, "
                    "which this server cannot tell apart any more; restart either of them"
                )
            known = self._peers.get(peer)
            if known is None or known.remote != remote:
                self._peers[peer] = _Peer(remote)

    def forget(self, peer: PeerKey) -> None:
        with self._lock:
            self._peers.pop(peer, None)

    def read(
        self,
        peer: PeerKey,
        remote_offsets: Sequence[int],
        local_offsets: Sequence[int],
        lengths: Sequence[int],
    ) -> _Transfer:
        with self._lock:
            if self._closed:
                raise RadixError("this data plane is closed")
            known = self._peers.get(peer)
            if known is None:
                raise RadixError(f"rank {peer.rank} is not connected to this data plane")
            theirs, ours = known.remote.data_bytes, self._memory.data_bytes
            blocks = checked_blocks(theirs, ours, remote_offsets, local_offsets, lengths)
            transfer = _Transfer(self, known, blocks)
            if not len(blocks.lengths):
                transfer.stage = "posted"
                return transfer
            self._in_flight.add(transfer)
            if not known.open:
                known.waiting.append(transfer)
                if not known.opening:
                    known.opening = True
                    self._users += 1
                    opener = (known, self._engine)
                    threading.Thread(target=self._open, args=opener, daemon=True).start()
            engine = self._take(transfer)
        if engine is not None:
            self._submit(transfer, engine)
        return transfer

    def figures(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._engine.unregister_memory(self._memory.address)
        self._drain()
        with self._lock:
            self._peers.clear()
            # The last reference: its end stops the engine's threads, and so every read.
            self._engine = None

    def _drain(self) -> None:
        """A thread that waits for a peer keeps the engine alive: see the reads end before."""
        deadline = time.monotonic() + _CLOSE_S
        while time.monotonic() < deadline:
            with self._lock:
                if not self._users or all(self._over(each) for each in self._in_flight):
                    return
            time.sleep(_CLOSE_POLL_S)

    # ---------------------------------------------------------------- transfers

    def _poll(self, transfer: _Transfer) -> TransferState:
        with self._lock:
            if self._over(transfer):
                self._in_flight.discard(transfer)
                return "failed" if transfer.failed else "done"
            engine = self._take(transfer)
        if engine is not None:
            self._submit(transfer, engine)
        return "pending"

    def _over(self, transfer: _Transfer) -> bool:
        """Requires: the lock."""
        if transfer.stage == "submitting":
            return False
        if transfer.stage == "queued":
            transfer.failed |= self._closed
            return transfer.failed
        while transfer.batches:
            status = -1
            if self._engine is not None:  # its end has ended them
                status = self._engine.transfer_check_status(transfer.batches[-1])
            if status not in (1, -1):
                return False
            transfer.failed |= status == -1
            transfer.batches.pop()
        return True

    def _take(self, transfer: _Transfer) -> Any:
        """The engine, when `transfer` is to be submitted now. Requires: the lock."""
        if transfer.stage != "queued" or not transfer.peer.open or self._first_contacts:
            return None
        transfer.stage = "submitting"
        self._users += 1
        return self._engine

    def _submit(self, transfer: _Transfer, engine: Any) -> bool:
        """Whether the engine knows the peer. Requires: the caller is counted in _users."""
        remote = (transfer.blocks.remote + transfer.peer.remote.address).tolist()
        local = (transfer.blocks.local + self._memory.address).tolist()
        lengths = transfer.blocks.lengths.tolist()
        endpoint = transfer.peer.endpoint
        batches: list[int] = []
        try:
            for source, destination, size in zip(remote, local, lengths, strict=True):
                batch = engine.batch_transfer_async_read(endpoint, [destination], [source], [size])
                if batch in _NO_BATCH:
                    break
                batches.append(batch)
        finally:
            with self._lock:
                transfer.failed |= len(batches) < len(lengths)
                transfer.batches = batches
                transfer.stage = "posted"
                self._users -= 1
        return len(batches) > 0

    def _open(self, peer: _Peer, engine: Any) -> None:
        """In a thread: the first contact with a peer."""
        opened = False
        answered = threading.Event()
        threading.Thread(target=_watch, args=(peer.endpoint, answered), daemon=True).start()
        try:
            opened = engine.send_probe(peer.endpoint) == 0 and self._first_read(peer, engine)
        finally:
            answered.set()
            with self._lock:
                peer.opening = False
                peer.open = opened
                for transfer in peer.waiting:
                    transfer.failed |= not opened
                peer.waiting.clear()
                self._users -= 1

    def _first_read(self, peer: _Peer, engine: Any) -> bool:
        """Whether the engine knows the peer now."""
        with self._lock:
            if self._closed:
                return False
            first = peer.waiting[0]
            first.stage = "submitting"
            self._told[peer.endpoint] = peer.remote
            self._users += 1
            self._first_contacts += 1
        try:
            return self._submit(first, engine)
        finally:
            with self._lock:
                self._first_contacts -= 1


def _endpoint(remote: RemoteMemory) -> str:
    return remote.engine.decode("utf-8", "replace").split("/")[0]


def _watch(endpoint: str, answered: threading.Event) -> None:
    """In a thread: end a first contact that stays without an answer."""
    host, _, port = endpoint.rpartition(":")
    pause = _CONTACT_S
    while not answered.wait(pause):
        pause = _CUT_AGAIN_S
        with contextlib.suppress(OSError):  # no address of that name: no contact either
            for address in {info[4][0] for info in socket.getaddrinfo(host, port)}:
                _cut(str(address), int(port))


def _cut(address: str, port: int) -> None:
    """Shut down the connections of this process to there, whichever library has made them."""
    for name in os.listdir("/proc/self/fd"):
        try:
            # A duplicate: what is shut down is what was looked at, whoever closes the original.
            with socket.fromfd(int(name), socket.AF_INET, socket.SOCK_STREAM) as connection:
                if connection.getpeername()[:2] == (address, port):
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # gone, not connected, or no socket


def _device_names(config: PlaneConfig) -> list[str]:
    """RadixError for a device with a port, which the engine would look for by that whole name."""
    for device in config.transfer_dev:
        name, _, port = device.partition(":")
        if port:
            raise RadixError(
                f"transfer_dev names {device}, but mooncake takes devices without a port; give "
                f"{name}"
            )
    return list(config.transfer_dev)


def _start_engine(config: PlaneConfig, host: str, memory: Memory) -> Any:
    missing = why_missing()
    if missing:
        raise PlaneMissing(missing)
    protocol = chosen_protocol(config)
    if config.transfer_port:
        _log.warning(
            "transfer_port %d is ignored: mooncake picks its ports, from MC_MIN_RPC_PORT to "
            "MC_MAX_RPC_PORT of the environment (15000 to 17000)",
            config.transfer_port,
        )
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if protocol == "tcp":
        os.environ["MC_FORCE_TCP"] = "1"  # else it takes RDMA devices when there are any
    devices = ",".join(_device_names(config)) if protocol == "rdma" else ""
    engine = importlib.import_module("mooncake.engine").TransferEngine()
    if engine.initialize(host, "P2PHANDSHAKE", protocol, devices) != 0:
        raise RadixError(
            f"mooncake does not start at {host} over {protocol} (devices: {devices or 'any'}); "
            "it says why on stderr"
        )
    result = engine.register_memory(memory.address, memory.data_bytes)
    if result != 0:
        raise RadixError(
            f"mooncake cannot register {memory.data_bytes} bytes of slots (error {result}); for "
            "RDMA raise the memlock limit (ulimit -l unlimited)"
        )
    return engine
