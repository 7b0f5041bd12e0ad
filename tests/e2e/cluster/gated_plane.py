# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A data plane whose reads wait at a gate, or fail, as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import pytest

from radixshmem_core.cluster import ways_in
from radixshmem_core.cluster.planes import DataPlane, PeerKey, Transfer
from radixshmem_core.errors import RadixError

__all__ = ["GatedPlane", "gate_planes"]


class _Failed:
    def poll(self) -> Literal["failed"]:
        return "failed"


class _Gated:
    """A transfer that begins when the gate is open, and reads what is there then."""

    def __init__(self, gate: threading.Event, begin: Callable[[], Transfer]) -> None:
        self._gate = gate
        self._begin = begin
        self._real: Transfer | None = None

    def poll(self) -> Literal["done", "pending", "failed"]:
        if self._real is None:
            if not self._gate.is_set():
                return "pending"
            try:
                self._real = self._begin()
            except RadixError:  # the peer was forgotten meanwhile
                self._real = _Failed()
        return self._real.poll()


class GatedPlane:
    """Passes all on to `plane`. `reads` counts what was asked for, also while the gate is shut."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self.gate = threading.Event()
        self.gate.set()
        self.failing: set[int] = set()  # ranks
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)

    def read(self, peer: PeerKey, *blocks: Any) -> Transfer:
        self.reads += 1
        if peer.rank in self.failing:
            return _Failed()
        return self.behind(self.gate, peer, *blocks)

    def behind(self, gate: threading.Event, peer: PeerKey, *blocks: Any) -> Transfer:
        return _Gated(gate, lambda: self._plane.read(peer, *blocks))

    def close(self) -> None:
        self.gate.set()  # what is left begins now, and fails: see rule 4 of planes/base.py
        self._plane.close()


def gate_planes(
    patch: pytest.MonkeyPatch, kind: type[GatedPlane] = GatedPlane
) -> dict[str, GatedPlane]:
    """Servers that are made in this process from now on get one; by the name of the server."""
    planes: dict[str, GatedPlane] = {}
    open_plane = ways_in.open_plane

    def gated(config: Any, *rest: Any) -> tuple[GatedPlane, str]:
        plane, why = open_plane(config, *rest)
        planes[config.name] = kind(plane)
        return planes[config.name], why

    patch.setattr(ways_in, "open_plane", gated)
    return planes
