# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What a server does in its cluster with one life of its index, under one digest.

The peer table tells every process of the node whom to read; the publication tells the shard
holders what is here; leases and pulls move the bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from .. import _core
from ..config import ServerConfig
from ..errors import RadixError
from ..node import Runner
from ..regions import Regions
from ..values import ComponentType
from . import wire
from .leases import Leases
from .peers import Peer, Peers
from .placement import Participant, hash64
from .placing import Placing
from .planes.base import DataPlane
from .publication import Publication
from .pulls import Puller

__all__ = ["SharedIndex", "digest_of", "geometry_key"]

_log = logging.getLogger("radixshmem.server")

_DRAIN_S = 5.0  # for the last batches


def geometry_key(geometry: dict[str, Any]) -> str:
    """What the bytes of a cache mean, as text: the name of its reset epoch in the registry."""
    pools = {
        kind: {k: v for k, v in pool.items() if k != "num_slots"}
        for kind, pool in geometry["pools"].items()
    }
    meaning = msgspec.json.encode({**geometry, "pools": pools}, order="sorted")
    return hashlib.blake2b(meaning, digest_size=16).hexdigest()


def digest_of(key: str, epoch: int) -> int:
    """Equal for servers whose trees may be read as one; never 0."""
    return hash64(f"{wire.PEER_PROTOCOL} {_core.LAYOUT_VERSION} {key} {epoch}".encode()) | 1


class SharedIndex:
    """Begins when the index is ready and ends with it, or when its epoch is raised."""

    def __init__(
        self,
        config: ServerConfig,
        regions: Regions,
        epoch: int,
        rank: int,
        plane: DataPlane | None,
        run: Runner,
        run_as_owner: Runner,
        peers: Peers,
        changed: Callable[[], None],
    ) -> None:
        """`changed()`: what this server says of itself is not the same any more."""
        self._config = config
        self._regions = regions
        self._peers = peers
        self._changed = changed
        self.epoch = epoch
        self.rank = rank
        self.plane = plane
        self.key = geometry_key(regions.identity.geometry)
        self.digest = digest_of(self.key, epoch)  # the tree holds nothing of another one
        index = regions.index
        self.table = _core.PeerTable(index)
        self.table.set_own(rank, self.digest, False)
        self.leases = Leases(index, self.digest)
        geometry = regions.identity.geometry_value()
        chunk_blocks = max(1, regions.identity.register_chunk_tokens // geometry.block_size)
        self.publication = Publication(
            index, rank, self.digest, chunk_blocks, run_as_owner, peers.of_rank
        )
        self.puller: Puller | None = None
        if plane is not None and regions.store is not None:
            pools = regions.identity.geometry["pools"]
            slot_bytes = {k: pools[k.name.lower()]["slot_bytes"] for k in _pools(regions)}
            self.puller = Puller(
                index,
                regions.store,
                slot_bytes,
                plane,
                run,
                self.digest,
                peers.of_rank,
                config.max_inflight,
            )
        lines = self.table.own_layout()["directory_lines"]
        self.placing = Placing(
            config,
            run,
            Participant(rank, index.incarnation, lines, warming=True),
            self._readable_peers,
            self.table,
            self.publication,
            changed,
        )
        self.draining = False
        self._records: dict[int, tuple[wire.Description, bool]] = {}  # written, by rank
        self._closed = False

    # ------------------------------------------------------------ what others must know

    def describe(self) -> dict[str, Any]:
        """The fields of a Description that come from here."""
        regions = self._regions
        identity = regions.identity
        return {
            "digest": self.digest,
            "epoch": self.epoch,
            "geometry": identity.geometry,
            "incarnation": regions.index.incarnation,
            "index_name": identity.name,
            "layout": self.table.own_layout(),
            "pools": _pools_of(regions),
            "warming": self.placing.warming,
            "draining": self.draining,
            "served": self.placing.served,
            "reads": self.placing.reads,
            "plane": "" if self.plane is None else self.plane.name,
        }

    def report(self) -> dict[str, Any]:
        """Figures for `radix-server status`."""
        return {
            "epoch": self.epoch,
            "directory": {**self.publication.figures(), "read_members": self.placing.read_members},
            "leases": self.leases.figures(),
            "pulls": {} if self.puller is None else vars(self.puller.figures),
        }

    # ------------------------------------------------------------ what others are

    def readable(self, peer: Peer) -> wire.Description | None:
        """What a peer said, if its index may be read from here."""
        said = peer.description
        if said is None or not peer.reachable or said.digest != self.digest:
            return None
        if said.rank != peer.member.rank:  # it registers anew
            return None
        return said

    def _readable_peers(self) -> list[wire.Description]:
        return [said for peer in self._peers if (said := self.readable(peer)) is not None]

    def peers_changed(self) -> None:
        """Write the peer table at once, and see who keeps which keys now."""
        if self._closed:
            return
        ranks = set()
        incarnation = self._regions.index.incarnation
        self.publication.directory.admit(self.rank, incarnation)
        self.table.set(
            self.rank, "live", self.placing.warming, incarnation, self.table.own_layout()
        )
        for peer in self._peers:
            rank = peer.member.rank
            ranks.add(rank)
            self._write_record(peer)
        for rank in set(self._records) - ranks:
            del self._records[rank]
            self.table.forget(rank)
            self.publication.directory.expel(rank)
        if self.puller is not None:
            self.puller.forget_others()
        self.placing.peers_changed()

    def _write_record(self, peer: Peer) -> None:
        said, rank = peer.description, peer.member.rank
        if said is None or self._records.get(rank) == (said, peer.reachable):
            return
        self._records[rank] = (said, peer.reachable)
        ours = said.digest == self.digest
        state = ("live" if ours else "other") if peer.reachable else "gone"
        layout = said.layout if ours else {}  # of another version it may be anything
        self.table.set(rank, state, said.warming, said.incarnation, layout)
        if ours:
            self.publication.directory.admit(rank, said.incarnation)
        else:
            self.publication.directory.expel(rank)

    # ------------------------------------------------------------ ends

    async def withdraw(self) -> None:
        """Publish nothing any more, keep no shards and give no leases."""
        self.draining = True
        self.table.set_own(self.rank, self.digest, True)
        await self.publication.stop()
        self.placing.withdraw()

    async def drain(self) -> None:
        """Withdraw, and wait until the others know it and the leases have ended."""
        await self.withdraw()
        await self.publication.flush(_DRAIN_S)
        self._changed()
        while len(self.leases):
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Everything that belongs to this digest ends; nobody here reads a peer under it."""
        self._closed = True
        for rank in (self.rank, *self._records):
            self.table.forget(rank)
        await self.placing.close()
        await self.publication.close()
        if self.puller is not None:
            await self.puller.close()
        self.leases.close()

    def apply(self, request: wire.Publish) -> None:
        """Take a batch of a peer into the own directory. RadixError when it has another digest."""
        if request.digest != self.digest:
            raise RadixError("the batch is of another geometry, fingerprint, epoch or version")
        peer = self._peers.of_rank(request.rank)
        if peer is None or peer.description is None:
            raise RadixError(f"rank {request.rank} is not known here yet")
        self.publication.directory.apply(request.batch, request.rank, request.incarnation)


def _pools(regions: Regions) -> list[ComponentType]:
    return [kind for kind in ComponentType if regions.index.slots_total(kind)]


def _pools_of(regions: Regions) -> dict[str, tuple[int, int, int]]:
    if regions.store is None:
        return {}
    return {
        kind.name.lower(): (
            regions.store.slot_offset(0, kind),
            regions.store.pool(kind).slot_bytes,
            regions.store.pool(kind).num_slots,
        )
        for kind in _pools(regions)
    }
