# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What a data plane is: one-sided reads of a peer's slots into own slots.

Calls may come from any thread and do not wait for peers. Offsets are relative to the data range of
a SlotStore. Deadlines are the caller's: a transfer that is pending after one may still write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

__all__ = ["DataPlane", "PeerKey", "Transfer"]


class PeerKey(NamedTuple):
    """One life of a peer's index."""

    rank: int
    incarnation: int


class Transfer(Protocol):
    """Reads in flight."""

    def poll(self) -> Literal["done", "pending", "failed"]:
        """Never waits. After "failed" nothing is written any more."""

    def release(self) -> None:
        """Give back what the engine holds for it. Requires: done or failed."""


class DataPlane(Protocol):
    """One engine of one server."""

    name: str

    def local_metadata(self) -> bytes:
        """What a peer needs to read the own slots."""

    def connect(self, peer: PeerKey, metadata: bytes) -> None:
        """Know a peer; again with other metadata: it replaces what was known."""

    def forget(self, peer: PeerKey) -> None:
        """The peer is gone."""

    def read(
        self,
        peer: PeerKey,
        remote_offsets: Sequence[int],
        local_offsets: Sequence[int],
        lengths: Sequence[int],
    ) -> Transfer:
        """Begin. RadixError when the peer is not known or the engine refuses."""

    def close(self) -> None:
        """End the engine; no transfer writes afterwards."""
