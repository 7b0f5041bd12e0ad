# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The control protocol: what a client and its radix-server say to each other.

A message is a little-endian u32 length and that many bytes of msgpack. Each connection carries one
request and its reply; only a connection that said `Attached` stays open, for as long as the client
lives: its end is what makes the server look whether the client died.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = [
    "MAX_MESSAGE_BYTES",
    "PROTOCOL_VERSION",
    "Attached",
    "Configure",
    "Failure",
    "Hello",
    "Info",
    "InfoReply",
    "Reply",
    "Request",
    "Status",
    "StatusReply",
    "WaitReady",
]

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20


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


class Status(_Request, frozen=True, kw_only=True, tag="status"):
    """Asks for everything that `radix-server status` shows."""


class InfoReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="info"):
    info: Info


class StatusReply(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="status"):
    status: dict[str, Any]


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag="failure"):
    """The request was refused. `kind` names the exception to raise at the client."""

    kind: str
    message: str


Request = Hello | WaitReady | Configure | Attached | Status
Reply = InfoReply | StatusReply | Failure
