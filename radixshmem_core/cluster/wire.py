# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The peer protocol: what two radix-servers say to each other on a control channel.

    frame   u32 length of the rest | u32 id | msgpack         little-endian

The id of a reply is that of its request; several requests may be under way. Whoever dialed asks,
the other side answers; docs/protocol.md has each message.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Annotated, Any

import msgspec

from ..messages import Failure
from ..rpc import ProtocolError, read_message
from .registry import MAX_RANKS

__all__ = [
    "CONTROL",
    "INDEX",
    "MAX_FRAME_BYTES",
    "PEER_PROTOCOL",
    "Accepted",
    "Describe",
    "Described",
    "Description",
    "EpochRaised",
    "Lease",
    "LeaseEnd",
    "LeaseState",
    "Leased",
    "PeerReply",
    "PeerRequest",
    "PlaneMetadata",
    "PlaneReply",
    "Publish",
    "encode",
    "read_frame",
    "replies",
    "requests",
]

PEER_PROTOCOL = 1
CONTROL = "control"  # channel names, part of the handshake
INDEX = "index"

MAX_FRAME_BYTES = 8 << 20
_HEADER = struct.Struct("<II")
_BODY_TIMEOUT_S = 30.0


_Unsigned = Annotated[int, msgspec.Meta(ge=0)]
_Pool = tuple[_Unsigned, _Unsigned, _Unsigned]  # offset in the slot data, stride, slots
_LAYOUT_COUNTS = (
    *("directory_lines", "arena_units", "side_blocks", "side_bytes"),
    *("table_lines", "table_lines_max"),
)


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A server as its peers must know it. What needs an index is empty while there is none."""

    protocol: int = PEER_PROTOCOL
    version: str
    node: str
    rank: _Unsigned
    instance: _Unsigned
    mode: str
    digest: _Unsigned = 0  # of protocol, geometry, fingerprint and epoch; 0 without a geometry
    epoch: _Unsigned = 0
    geometry: dict[str, Any] | None = None
    incarnation: _Unsigned = 0
    index_name: str = ""
    layout: dict[str, _Unsigned] = {}  # where the areas of its index lie, see _core.PeerTable
    pools: dict[str, _Pool] = {}
    served: _Unsigned = 0  # digest of the members to whom it has sent all that they keep
    reads: _Unsigned = 0  # digest of the members by whose map it reads
    warming: bool = False
    draining: bool = False
    plane: str = ""

    def __post_init__(self) -> None:
        """ValueError for sizes that cannot be, of this version of the protocol."""
        if self.protocol != PEER_PROTOCOL or not self.digest:
            return
        if self.rank >= MAX_RANKS:
            raise ValueError(f"rank is {self.rank}; ranks are below {MAX_RANKS}")
        for name in _LAYOUT_COUNTS:
            value = self.layout.get(name, -1)
            if not 0 <= value < 1 << 31:
                raise ValueError(f"layout: {name} is {value}; it must be in [0, 2^31)")


class _Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="request"):
    pass


class Describe(_Request, frozen=True, kw_only=True, tag="describe"):
    """Says who asks, and asks the same; sent at every change, and now and then."""

    mine: Description


class Publish(_Request, frozen=True, kw_only=True, tag="publish"):
    """Directory entries of the sender: a batch of csrc/directory/directory_wire.h."""

    rank: int
    incarnation: int
    digest: int
    batch: bytes


class Lease(_Request, frozen=True, kw_only=True, tag="lease"):
    """Pin what is cached of this path (u64 hashes) for `ttl_s`, for a transfer."""

    incarnation: int
    digest: int
    hashes: bytes
    mask: int
    start: int  # slots before this block are not wanted
    ttl_s: float


class LeaseEnd(_Request, frozen=True, kw_only=True, tag="lease_end"):
    """Ends a lease; the answer says whether it was held until now."""

    lease: int


class PlaneMetadata(_Request, frozen=True, kw_only=True, tag="plane_metadata"):
    """Asks for what the data plane needs to read this server's slots."""

    plane: str


class EpochRaised(_Request, frozen=True, kw_only=True, tag="epoch_raised"):
    """The registry has this epoch now; answered when the tree of older ones is dropped."""

    key: Annotated[str, msgspec.Meta(max_length=64)]
    epoch: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class Described(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="described"):
    mine: Description


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="accepted"):
    pass


class Leased(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="leased"):
    """Slots are i32 little-endian, of the blocks from `start` (FULL) or `swa_start` on."""

    lease: int
    common_hit: int
    full_slots: bytes = b""
    swa_start: int = 0
    swa_slots: bytes = b""
    mamba: int = -1


class LeaseState(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="lease_state"):
    held: bool
    incarnation: int


class PlaneReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="plane"):
    metadata: bytes


PeerRequest = Describe | Publish | Lease | LeaseEnd | PlaneMetadata | EpochRaised
PeerReply = Described | Accepted | Leased | LeaseState | PlaneReply | Failure

requests = msgspec.msgpack.Decoder(PeerRequest)
replies = msgspec.msgpack.Decoder(PeerReply)
_encoder = msgspec.msgpack.Encoder()


def encode(number: int, message: PeerRequest | PeerReply) -> bytes:
    body = _encoder.encode(message)
    length = len(body) + 4
    if length > MAX_FRAME_BYTES:
        raise ProtocolError(f"a peer message of {length} bytes exceeds {MAX_FRAME_BYTES}")
    return _HEADER.pack(length, number) + body


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes] | None:
    """(id, body) of the next frame; None at the end of the connection."""
    frame = await read_message(reader, _HEADER.size, _body_length, _BODY_TIMEOUT_S)
    if frame is None:
        return None
    header, body = frame
    return int(_HEADER.unpack(header)[1]), body


def _body_length(header: bytes) -> int:
    length = int(_HEADER.unpack(header)[0])
    if not 4 <= length <= MAX_FRAME_BYTES:
        raise ProtocolError(f"a peer frame of {length} bytes; 4 to {MAX_FRAME_BYTES} are allowed")
    return length - 4
