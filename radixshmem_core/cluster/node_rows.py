# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The rows of `radix-server nodes`: each member as one server sees it."""

from __future__ import annotations

from typing import Any

from . import wire
from .peers import Peer

__all__ = ["own_row", "peer_row"]


def own_row(said: wire.Description, where: str) -> dict[str, Any]:
    """`said`: what this server tells its peers, who reach it at `where`."""
    state = "self, draining" if said.draining else "self"
    return {**_row(said), "address": where, "state": state}


def peer_row(peer: Peer, digest: int) -> dict[str, Any]:
    """`digest`: of the own index, 0 without one."""
    said = peer.description
    where = f"{peer.member.address}:{peer.member.port}"
    if said is None or not peer.reachable:
        return {
            "node": peer.name,
            "rank": peer.member.rank,
            "address": where,
            "state": "unreachable",
            "error": peer.last_error,
        }
    return {**_row(said), "address": where, "state": _state(said, digest)}


def _state(said: wire.Description, digest: int) -> str:
    if said.digest == 0:
        return "waiting for a geometry"
    if digest == 0:
        return "ready; this node waits for a geometry"
    if said.digest != digest:
        return "other geometry"
    if said.draining:
        return "draining"
    return "warming" if said.warming else "live"


def _row(said: wire.Description) -> dict[str, Any]:
    return {
        "node": said.node,
        "rank": said.rank,
        "version": said.version,
        "mode": said.mode,
        "epoch": said.epoch,
        "incarnation": f"{said.incarnation:016x}",
        "geometry": said.geometry,
        "data_plane": said.plane,
    }
