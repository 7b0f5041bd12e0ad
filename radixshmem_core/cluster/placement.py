# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Which member keeps which shard of the directory.

Members of this server's digest take part, weighted by the size of their directories. A member that
has just come is *warming*: it is written to at once, and read once the others have sent it what it
keeps, or after a few seconds. So there are two maps: where entries are read, and where they are
written (to both, where these differ).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import _core

__all__ = ["Participant", "Placement", "ShardMap"]

ShardMap = npt.NDArray[np.uint16]
"""[65,536, 2]: rank and replica of each shard; 0xffff = none."""


@dataclass(frozen=True, order=True)
class Participant:
    rank: int
    incarnation: int
    lines: int  # of its directory: its weight
    warming: bool


@dataclass(frozen=True)
class Placement:
    """The maps for one set of participants."""

    participants: tuple[Participant, ...]
    read: ShardMap
    write: ShardMap

    @classmethod
    def of(cls, participants: tuple[Participant, ...], replicas: int) -> Placement:
        write = _shard_map(participants, replicas)
        settled = tuple(p for p in participants if not p.warming)
        read = write if settled in ((), participants) else _shard_map(settled, replicas)
        return cls(participants, read, write)

    @property
    def incarnations(self) -> dict[int, int]:
        return {p.rank: p.incarnation for p in self.participants}


def _shard_map(participants: tuple[Participant, ...], replicas: int) -> ShardMap:
    weights = [(p.rank, p.lines) for p in participants]
    return np.frombuffer(_core.shard_map(weights, replicas), np.uint16).reshape(-1, 2)
