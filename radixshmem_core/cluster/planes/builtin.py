# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The built-in data plane: slots are read the way indexes are, shared memory first, then streams.

A peer has a few readers, each with one batch at a time in a thread of the pool; a transfer is split
over the readers that are free. What one reader cannot do is an error of that peer alone.
"""

from __future__ import annotations

import concurrent.futures
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from ... import _core
from ...errors import RadixError, ServerNotReady
from ...store import SlotStore
from .base import PeerKey

__all__ = ["BuiltinPlane"]

_READERS_PER_PEER = 2
_THREADS = 4
_READ_TIMEOUT_MS = 30_000  # the caller's deadline is shorter; then the transfer ends late


class _Metadata(msgspec.Struct, frozen=True):
    """Where a server's slots are for whoever is on the same machine."""

    index_name: str
    incarnation: int
    data_name: str
    hugepage_path: str
    nonce: int


@dataclass
class _Peer:
    metadata: _Metadata
    idle: list[_core.PeerSlots] = field(default_factory=list)
    made: int = 0


class _Transfer:
    def __init__(self, future: concurrent.futures.Future[None]) -> None:
        self._future = future
        self.error = ""

    def poll(self) -> Literal["done", "pending", "failed"]:
        if not self._future.done():
            return "pending"
        error = self._future.exception()
        self.error = "" if error is None else str(error)
        return "done" if error is None else "failed"

    def release(self) -> None:
        """Nothing is held."""


class BuiltinPlane:
    """One per server; safe to use from several threads."""

    name = "builtin"

    def __init__(
        self,
        index: _core.Index,
        index_name: str,
        store: SlotStore,
        hugepage_path: str,
        dial: Callable[[int], socket.socket],
    ) -> None:
        """`dial(rank)` gives an index stream to a peer, in any thread."""
        self._own = _Metadata(index_name, index.incarnation, store.name, hugepage_path, store.nonce)
        self._memory = store.data_view()
        self._dial = dial
        self._peers: dict[PeerKey, _Peer] = {}
        self._guard = threading.Condition()
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "radix-server-slots")

    def local_metadata(self) -> bytes:
        return msgspec.msgpack.encode(self._own)

    def connect(self, peer: PeerKey, metadata: bytes) -> None:
        """Remember where it is; readers are made with the first transfer."""
        told = msgspec.msgpack.decode(metadata, type=_Metadata)
        with self._guard:
            known = self._peers.get(peer)
            if known is None or known.metadata != told:
                self._peers[peer] = _Peer(told)

    def forget(self, peer: PeerKey) -> None:
        with self._guard:
            self._peers.pop(peer, None)

    def read(
        self,
        peer: PeerKey,
        remote_offsets: Sequence[int],
        local_offsets: Sequence[int],
        lengths: Sequence[int],
    ) -> _Transfer:
        with self._guard:
            known = self._peers.get(peer)
        if known is None:
            raise RadixError(f"peer {peer} is not connected to the data plane")
        job = self._threads.submit(
            self._transfer,
            peer,
            known,
            np.asarray(remote_offsets, np.uint64),
            np.asarray(local_offsets, np.uint64),
            np.asarray(lengths, np.uint64),
        )
        return _Transfer(job)

    def close(self) -> None:
        """Waits for the transfers in flight."""
        self._threads.shutdown(cancel_futures=True)
        self._peers.clear()

    def _transfer(
        self,
        key: PeerKey,
        peer: _Peer,
        remote: np.ndarray,
        local: np.ndarray,
        lengths: np.ndarray,
    ) -> None:
        reader = self._take(key, peer)
        try:
            reader.read(self._memory, remote, local, lengths, _READ_TIMEOUT_MS)
        finally:
            self._give_back(peer, reader)

    def _take(self, key: PeerKey, peer: _Peer) -> _core.PeerSlots:
        with self._guard:
            while not peer.idle and peer.made >= _READERS_PER_PEER:
                self._guard.wait()
            if peer.idle:
                return peer.idle.pop()
            peer.made += 1
        try:
            return self._make(key, peer.metadata)
        except BaseException:
            with self._guard:
                peer.made -= 1
                self._guard.notify()
            raise

    def _give_back(self, peer: _Peer, reader: _core.PeerSlots) -> None:
        with self._guard:
            if reader.broken:
                peer.made -= 1
            else:
                peer.idle.append(reader)
            self._guard.notify()

    def _make(self, key: PeerKey, told: _Metadata) -> _core.PeerSlots:
        try:
            return _core.PeerSlots.shm(
                told.index_name, told.incarnation, told.data_name, told.hugepage_path, told.nonce
            )
        except ServerNotReady:
            with self._dial(key.rank) as stream:
                return _core.PeerSlots.tcp(stream.detach())
