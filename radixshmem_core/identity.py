# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What an index region says about itself: written at creation, read by clients and by an adopter.

It lies in the index region as msgpack, so that it outlives the server that wrote it.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from .config import ServerConfig
from .errors import RadixError
from .plan import SlotPlan
from .values import Geometry

__all__ = ["Identity"]

_FORMAT = 1


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """One cache: its geometry (with slot counts), its slot region, and the budget behind it."""

    format: int = _FORMAT
    name: str
    geometry: dict[str, Any]
    data_name: str  # "" for an index without slots
    hugepage_path: str
    nonce: int  # equal in the header of the slot region
    data_bytes: int | None
    slot_align: int  # what a client's 0 stands for
    register_chunk_tokens: int  # what a client's 0 stands for
    kvevents: bool

    @classmethod
    def make(cls, config: ServerConfig, data_name: str, slots: SlotPlan) -> Identity:
        return cls(
            name=config.name,
            geometry=slots.geometry_dict(),
            data_name=data_name if slots.has_store else "",
            hugepage_path=config.hugepage_path if slots.has_store else "",
            nonce=secrets.randbits(62) | 1,
            data_bytes=config.slot_region_bytes,
            slot_align=config.slot_align,
            register_chunk_tokens=config.register_chunk_tokens,
            kvevents=config.kvevent_ring_capacity > 0,
        )

    def geometry_value(self) -> Geometry:
        return Geometry.from_dict(self.geometry)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes, name: str) -> Identity:
        """RadixError when the bytes in the region `name` were written by something else."""
        try:
            identity = msgspec.msgpack.decode(data, type=cls)
            identity.geometry_value()
        except (msgspec.MsgspecError, ValueError) as error:
            raise RadixError(
                f"the index region {name} does not describe itself as this version does ({error}); "
                "end its clients and restart its radix-server"
            ) from error
        if identity.format != _FORMAT:
            raise RadixError(
                f"the index region {name} has identity format {identity.format}, this version "
                f"reads {_FORMAT}; use the version of radixshmem that made it"
            )
        return identity
