# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A data plane moves slots from the memory of a peer into ours, by one-sided reads.

What a caller may rely on, whatever the engine:

1. "done" and "failed" mean that the engine will not write into the destination any more. Until
   then a transfer is "pending", however long that takes: a peer that is stopped can hold one for
   as long as it is stopped. Deadlines are the caller's: it stops looking and keeps the destination
   slots back until `poll` says that the transfer is over.
2. `poll` never waits. `connect`, `read` and `close` may, for a moment or for the time of a copy:
   call them where waiting is allowed.
3. An error of one peer never disturbs transfers with others.
4. After `close` has returned, nothing is written into our memory.

All methods may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from ...errors import RadixError
from ...store import SlotStore

__all__ = [
    "Blocks",
    "DataPlane",
    "Memory",
    "PeerKey",
    "PlaneConfig",
    "PlaneMissing",
    "RemoteMemory",
    "Transfer",
    "TransferState",
    "checked_blocks",
]

TransferState = Literal["done", "pending", "failed"]


class PlaneMissing(RadixError):
    """A data plane was asked for that this installation does not have."""


class PeerKey(NamedTuple):
    """One life of a peer's memory."""

    rank: int
    incarnation: int


class Memory(NamedTuple):
    """The slots of this server: what its peers read, and where pulled slots go."""

    address: int
    data_bytes: int

    @staticmethod
    def of(store: SlotStore) -> Memory:
        """Requires: the store is closed later than whoever uses this."""
        return Memory(np.frombuffer(store.data_view(), np.uint8).ctypes.data, store.data_bytes)


class Transfer(Protocol):
    """Reads in flight."""

    def poll(self) -> TransferState: ...


class DataPlane(Protocol):
    @property
    def name(self) -> str: ...

    def local_metadata(self) -> bytes:
        """What a peer needs to read our slots; it travels in control messages.

        RadixError while they cannot be read.
        """

    def connect(self, peer: PeerKey, metadata: bytes) -> None:
        """Know a peer by its `local_metadata`; another one than before replaces it.

        RadixError when it is of another kind of plane, or no metadata at all.
        """

    def forget(self, peer: PeerKey) -> None:
        """No further reads from this peer. Transfers in flight may fail, or go on to their end."""

    def read(
        self,
        peer: PeerKey,
        remote_offsets: Sequence[int],
        local_offsets: Sequence[int],
        lengths: Sequence[int],
    ) -> Transfer:
        """Read blocks; offsets are relative to the data range of either side.

        ValueError for a block outside of either; RadixError for a peer that is not connected.
        """

    def figures(self) -> list[dict[str, Any]]:
        """How peers are read, one row for each; [] where only the engine knows."""

    def close(self) -> None:
        """Stop. Transfers in flight have failed afterwards."""


class PlaneConfig(Protocol):
    """What a plane reads of `ServerConfig`."""

    @property
    def transfer_backend(self) -> str: ...
    @property
    def transfer_dev(self) -> tuple[str, ...]: ...
    @property
    def transfer_protocol(self) -> str: ...
    @property
    def transfer_ip(self) -> str: ...
    @property
    def transfer_port(self) -> int: ...
    @property
    def gid_idx(self) -> int: ...


class RemoteMemory(msgspec.Struct, frozen=True, array_like=True):
    """The metadata of the planes that drive an engine of others."""

    plane: str
    address: int
    data_bytes: int
    engine: bytes  # what the engine needs to reach it

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(plane: str, metadata: bytes) -> RemoteMemory:
        """RadixError for what is not metadata of `plane`."""
        try:
            remote = msgspec.msgpack.decode(metadata, type=RemoteMemory)
        except msgspec.MsgspecError as error:
            raise RadixError(
                f"the peer's metadata of its data plane cannot be read: {error}"
            ) from None
        if remote.plane != plane:
            raise RadixError(
                f"the peer moves slots with {remote.plane!r}, this server with {plane!r}; give "
                "both the same --transfer-backend"
            )
        if not (remote.address >= 0 and 0 <= remote.data_bytes < 2**63 - remote.address):
            raise RadixError(
                f"the peer names {remote.data_bytes} bytes of slots at address {remote.address}, "
                "which no memory has"
            )
        return remote


class Blocks(NamedTuple):
    """Blocks to read that lie within both sides."""

    remote: npt.NDArray[np.int64]  # offsets
    local: npt.NDArray[np.int64]  # offsets
    lengths: npt.NDArray[np.int64]


def checked_blocks(
    remote_bytes: int,
    local_bytes: int,
    remote_offsets: Sequence[int],
    local_offsets: Sequence[int],
    lengths: Sequence[int],
) -> Blocks:
    """ValueError, naming the block, unless all of them lie within both data ranges."""
    counts = len(remote_offsets), len(local_offsets), len(lengths)
    if len(set(counts)) != 1:
        raise ValueError(
            f"{counts[0]} remote offsets, {counts[1]} local offsets and {counts[2]} lengths; "
            "give one of each for a block"
        )
    try:
        remote, local, sizes = (
            np.asarray(values, np.int64) if len(values) else np.empty(0, np.int64)
            for values in (remote_offsets, local_offsets, lengths)
        )
    except OverflowError as error:
        raise ValueError(f"an offset or a length is no 64-bit number: {error}") from None
    for side, offsets, limit in (("remote", remote, remote_bytes), ("local", local, local_bytes)):
        wrong = (offsets < 0) | (sizes < 1) | (sizes > limit) | (offsets > limit - sizes)
        if wrong.any():
            at = int(wrong.argmax())
            raise ValueError(
                f"block {at}: {sizes[at]} bytes at {side} offset {offsets[at]} are not within "
                f"the {limit} bytes of slots there"
            )
    return Blocks(remote, local, sizes)
