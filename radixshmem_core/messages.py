# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The control protocol: what a client and its radix-server say to each other.

A message is a little-endian u32 length and that many bytes of msgpack. Each connection carries one
request and its reply, but for two kinds that stay open: one that said `Attached`, for as long as
the client lives (its end is what makes the server look whether the client died), and one that said
`Pulls`, which carries the client's pull jobs.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = [
    "MAX_MESSAGE_BYTES",
    "PROTOCOL_VERSION",
    "Attached",
    "Configure",
    "Dial",
    "Dialed",
    "Done",
    "Drain",
    "Failure",
    "Flush",
    "FlushReply",
    "Hello",
    "Info",
    "InfoReply",
    "Lookups",
    "PullDone",
    "PullEnd",
    "PullStart",
    "Pulls",
    "Reply",
    "Request",
    "Reset",
    "Status",
    "StatusReply",
    "WaitReady",
]

PROTOCOL_VERSION = 2
MAX_MESSAGE_BYTES = 4 << 20


class Lookups(msgspec.Struct, frozen=True, kw_only=True):
    """How processes of this node are to read its peers."""

    transport: str  # "auto", "shm", "verbs" or "tcp"
    timeout_us: int  # 0: by transport
    index_dev: str = ""  # the RDMA device to read through; "": none
    gid_idx: int = -1


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a server. `geometry` has the slot counts; None until a client configured it."""

    mode: str  # "waiting", "configuring", "ready", "failed"
    last_error: str
    index_name: str
    rank: int
    world_size: int
    data_plane: str  # "" when nothing moves slots between nodes
    geometry: dict[str, Any] | None
    hugepage_path: str
    uptime: float  # seconds
    version: str
    lookups: Lookups | None = None  # None without a cluster


class _Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="request"):
    protocol: int = PROTOCOL_VERSION


class Hello(_Request, frozen=True, kw_only=True, tag="hello"):
    """Asks for `Info`."""


class WaitReady(_Request, frozen=True, kw_only=True, tag="wait_ready"):
    """Asks for `Info` once the server is ready or has failed, or after `timeout_s`."""

    timeout_s: float


class Configure(_Request, frozen=True, kw_only=True, tag="configure"):
    """Gives the geometry; answered when the regions exist."""

    geometry: dict[str, Any]


class Attached(_Request, frozen=True, kw_only=True, tag="attached"):
    """Says which entry of the client table belongs to the process at this end."""

    client_id: int
    generation: int


class Flush(_Request, frozen=True, kw_only=True, tag="flush"):
    """Publish every insert; answered when all shard holders have it, or after `timeout_s`."""

    timeout_s: float


class Reset(_Request, frozen=True, kw_only=True, tag="reset"):
    """Raise the reset epoch: every node of this fingerprint drops its tree."""


class Drain(_Request, frozen=True, kw_only=True, tag="drain"):
    """Withdraw this node's entries and end its leases; afterwards peers do without it."""

    forget_geometry: bool = False


class Dial(_Request, frozen=True, kw_only=True, tag="dial"):
    """Asks how to read a peer."""

    rank: int


class Pulls(_Request, frozen=True, kw_only=True, tag="pulls"):
    """From here on this connection carries `PullStart` and `PullEnd`, and `PullDone` back."""


class PullStart(_Request, frozen=True, kw_only=True, tag="pull_start"):
    """Bring what `candidates` (rank, blocks) have of this path (u64 hashes)."""

    job: int
    hashes: bytes
    mask: int
    local_hit: int
    candidates: list[tuple[int, int]]
    timeout_s: float


class PullEnd(_Request, frozen=True, kw_only=True, tag="pull_end"):
    """The job's outcome was collected, or is not wanted any more: its pins go."""

    job: int


class Status(_Request, frozen=True, kw_only=True, tag="status"):
    """Asks for everything that `radix-server status` shows."""


class InfoReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="info"):
    info: Info


class StatusReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="status"):
    status: dict[str, Any]


class FlushReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="flush"):
    complete: bool


class Done(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="done"):
    """The request was carried out."""


class Dialed(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="dialed"):
    """A peer's index. The descriptor of an index stream to it comes with the reply."""

    incarnation: int
    index_name: str


class PullDone(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="pull_done"):
    """What a job brought; its blocks stay pinned by the server until `PullEnd`."""

    job: int
    common_hit: int
    remote_blocks: int
    remote_bytes: int
    source_rank: int  # -1: nothing came from a peer
    failures: int
    staging_shortfalls: int
    promotion_shortfalls: int


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="failure"):
    """The request was refused. `kind` names the exception to raise at the client."""

    kind: str
    message: str


Request = (
    Hello
    | WaitReady
    | Configure
    | Attached
    | Status
    | Flush
    | Reset
    | Drain
    | Dial
    | Pulls
    | PullStart
    | PullEnd
)
Reply = InfoReply | StatusReply | FlushReply | Done | Dialed | PullDone | Failure
