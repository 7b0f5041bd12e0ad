# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Which member keeps which shard of the directory.

Members of this server's digest take part, weighted by the size of their directories. A member that
has just come is *warming*: it is written to at once, and read once the others have sent it what it
keeps, or after a few seconds. And not all servers hear of a change at once: where a peer may still
read by a map of before, it is written to as well.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from .. import _core

__all__ = ["Participant", "Placement", "ShardMap", "hash64"]

ShardMap = npt.NDArray[np.uint16]
"""[65,536, 2]: rank and replica of each shard; 0xffff = none."""


def hash64(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


@dataclass(frozen=True, order=True)
class Participant:
    rank: int
    incarnation: int
    lines: int  # of its directory: its weight
    warming: bool


class Placement:
    """The maps for one set of participants: `read` by, `write` to, and `former` ones that peers may
    still read by, the newest first. Requires: make() before they are used."""

    read: ShardMap
    write: ShardMap

    def __init__(self, participants: tuple[Participant, ...], replicas: int) -> None:
        settled = tuple(p for p in participants if not p.warming) or participants
        self.participants = participants
        self.settled = settled
        self.former: dict[int, ShardMap] = {}  # by `reads`
        self._replicas = replicas
        self.served = _digest(participants)
        self.reads = _digest(settled)

    def make(self) -> None:
        """Make the maps: not for an event loop, with many members it takes a while."""
        self.write = _shard_map(self.participants, self._replicas)
        same = self.settled == self.participants
        self.read = self.write if same else _shard_map(self.settled, self._replicas)

    def maps(self) -> list[bytes]:
        """All that is written to, each once."""
        maps = [self.read, self.write, *self.former.values()]
        return list(dict.fromkeys(shard_map.tobytes() for shard_map in maps))


def _digest(participants: tuple[Participant, ...]) -> int:
    """u63: names a set of lives."""
    lives = [(p.rank, p.incarnation) for p in participants]
    return hash64(msgspec.json.encode(sorted(lives))) >> 1


def _shard_map(participants: tuple[Participant, ...], replicas: int) -> ShardMap:
    weights = [(p.rank, p.lines) for p in participants]
    return np.frombuffer(_core.shard_map(weights, replicas), np.uint16).reshape(-1, 2)
