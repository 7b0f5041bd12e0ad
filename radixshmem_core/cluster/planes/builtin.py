# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The built-in data plane: slots are read the way indexes are (ways.py), striped over all rails.

A transfer is cut into pieces, which the readers of its peer take in turn: large ones flow over
several at once. A reader that breaks is dropped, and its piece given to another one.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ... import _core
from ...errors import RadixError
from ...store import SlotStore
from .base import Blocks, PeerKey, RemoteMemory, checked_blocks
from .rails import Rail
from .readers import READERS, Piece, PiecewiseTransfer, Readers
from .ways import Told, Ways

__all__ = ["BuiltinPlane"]

_PIECE_BYTES = 4 << 20
_MAX_READ_BYTES = 32 << 20  # a transport refuses more than twice that


class _Peer(NamedTuple):
    remote: RemoteMemory
    ways: Ways
    readers: Readers


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
        rails: Sequence[Rail] = (),
        protocol: str = "",
    ) -> None:
        """`dial(rank)` gives an index stream to a peer, in any thread. `rails` are registered with
        the slots; `protocol` "rdma" is them alone, "tcp" streams alone."""
        if protocol == "rdma" and not rails:
            raise RadixError(
                "transfer_protocol is rdma, but the data plane builtin has no device; name those "
                "to use with --transfer-dev"
            )
        numbers = tuple(rail.number for rail in rails)
        own = Told(index_name, index.incarnation, store.name, hugepage_path, store.nonce, numbers)
        self._rails = rails
        self._protocol = protocol
        self._limit = max(READERS, 2 * len(rails))
        self._own = RemoteMemory(self.name, 0, store.data_bytes, msgspec.msgpack.encode(own))
        self._memory = store.data_view()
        self._dial = dial
        self._peers: dict[PeerKey, _Peer] = {}
        self._guard = threading.Lock()
        self._forgotten: list[Readers] = []
        self._closed = False

    def local_metadata(self) -> bytes:
        return self._own.encode()

    def connect(self, peer: PeerKey, metadata: bytes) -> None:
        """Remember where it is; readers are made with the first transfer."""
        remote = RemoteMemory.decode(self.name, metadata)
        try:
            told = msgspec.msgpack.decode(remote.engine, type=Told)
        except msgspec.MsgspecError as error:
            raise RadixError(f"the metadata of rank {peer.rank} cannot be read: {error}") from None
        with self._guard:
            if self._closed:
                raise RadixError("this data plane is closed")
            known = self._peers.get(peer)
            if known is None or known.remote != remote:
                self._forget(peer)
                ways = Ways(told, self._protocol, self._rails, lambda: self._dial(peer.rank))
                name = f"radix-server-slots-{peer.rank}"
                readers = Readers(name, self._memory, ways.open, self._limit)
                self._peers[peer] = _Peer(remote, ways, readers)

    def forget(self, peer: PeerKey) -> None:
        """Its transfers in flight fail."""
        with self._guard:
            self._forget(peer)

    def _forget(self, peer: PeerKey) -> None:
        known = self._peers.pop(peer, None)
        if known is not None:
            known.readers.end()
            self._forgotten = [readers for readers in self._forgotten if readers.alive]
            self._forgotten.append(known.readers)

    def read(
        self,
        peer: PeerKey,
        remote_offsets: Sequence[int],
        local_offsets: Sequence[int],
        lengths: Sequence[int],
    ) -> PiecewiseTransfer:
        with self._guard:
            if self._closed:
                raise RadixError("this data plane is closed")
            known = self._peers.get(peer)
        if known is None:
            raise RadixError(f"rank {peer.rank} is not connected to this data plane")
        sizes = known.remote.data_bytes, self._own.data_bytes
        pieces = list(_cut(checked_blocks(*sizes, remote_offsets, local_offsets, lengths)))
        transfer = PiecewiseTransfer(len(pieces))
        known.readers.take([Piece(transfer, blocks) for blocks in pieces])
        return transfer

    def close(self) -> None:
        """Ends the transfers in flight."""
        with self._guard:
            self._closed = True
            for peer in list(self._peers):
                self._forget(peer)
            forgotten, self._forgotten = self._forgotten, []
        for readers in forgotten:
            readers.join()

    def figures(self) -> list[dict[str, Any]]:
        """How the slots of each peer are read, and why not otherwise."""
        with self._guard:
            peers = list(self._peers.items())
        return [{"rank": key.rank, **peer.ways.figures()} for key, peer in peers]


def _cut(blocks: Blocks) -> Iterator[Blocks]:
    """Pieces of about _PIECE_BYTES, of reads that every transport takes."""
    if len(blocks.lengths) and blocks.lengths.max() > _MAX_READ_BYTES:
        blocks = _smaller(blocks)
    ends = np.cumsum(blocks.lengths)
    at = 0
    while at < len(ends):
        begin = ends[at] - blocks.lengths[at]
        end = max(at + 1, int(np.searchsorted(ends, begin + _PIECE_BYTES, "right")))
        yield Blocks(blocks.remote[at:end], blocks.local[at:end], blocks.lengths[at:end])
        at = end


def _smaller(blocks: Blocks) -> Blocks:
    counts = -(-blocks.lengths // _MAX_READ_BYTES)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    begin: npt.NDArray[np.int64] = number * _MAX_READ_BYTES
    lengths = np.minimum(np.repeat(blocks.lengths, counts) - begin, _MAX_READ_BYTES)
    remote, local = (np.repeat(offsets, counts) + begin for offsets in blocks[:2])
    return Blocks(remote, local, lengths)
