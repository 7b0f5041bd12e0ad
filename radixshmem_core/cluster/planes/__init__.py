# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The data planes, which move slots between nodes: which are usable here, and how to open one."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence

from ...errors import RadixError
from ...regions import Regions
from ..addresses import is_loopback
from . import builtin, mooncake, nixl
from .base import DataPlane, PeerKey, PlaneConfig, PlaneMissing, Transfer
from .rails import Rail

__all__ = [
    "BACKENDS",
    "DataPlane",
    "PeerKey",
    "PlaneMissing",
    "Transfer",
    "check_backend",
    "open_plane",
    "usable_backends",
    "why_missing",
]

BACKENDS = ("mooncake", "nixl", "builtin")
"""In order of preference."""

_log = logging.getLogger(__name__)


def why_missing(backend: str) -> str:
    """What is missing to use it, with the command that brings it; empty: it is usable.

    Imports no engine: it looks for the package, and loads the system's libraries that this needs.
    """
    if backend == "mooncake":
        return mooncake.why_missing()
    if backend == "nixl":
        return nixl.why_missing()
    return ""


def usable_backends() -> tuple[str, ...]:
    return tuple(backend for backend in BACKENDS if not why_missing(backend))


def check_backend(backend: str) -> None:
    """PlaneMissing, with the command that installs it, for one that is asked for and not here."""
    why = why_missing(backend)
    if why:
        raise PlaneMissing(f"transfer_backend is {backend}, but {why}")


def open_plane(
    config: PlaneConfig,
    regions: Regions,
    address: str,
    dial: Callable[[int], socket.socket],
    rails: Sequence[Rail] = (),
) -> tuple[DataPlane, str]:
    """The plane that config.transfer_backend names, and why it is this one.

    `auto` is builtin on loopback, else the first usable one that starts. PlaneMissing, with the
    command that installs it, for one that is asked for and not here. Registering the slots for RDMA
    takes a while. The plane must be closed before the store. `dial(rank)` gives an index stream
    to a peer, in any thread; `rails` are those of `open_rails` for the slots of this store.
    """
    if config.transfer_backend != "auto":
        check_backend(config.transfer_backend)
        return _open(config.transfer_backend, config, regions, address, dial, rails), "asked for"
    if is_loopback(address):  # the others listen on all addresses, and know no token
        plane = _open("builtin", config, regions, address, dial, rails)
        return plane, "auto: all nodes are on this machine"
    passed_over: list[str] = []
    for backend in BACKENDS:
        why = why_missing(backend)
        if not why:
            try:
                plane = _open(backend, config, regions, address, dial, rails)
            except RadixError as error:
                _log.warning("the data plane %s does not start: %s", backend, error)
                why = str(error)
            else:
                return plane, "; ".join(["auto: the first usable one", *passed_over])
        passed_over.append(f"not {backend}: {why}")
    raise RadixError(f"no data plane is usable here: {'; '.join(passed_over)}")


def _open(
    backend: str,
    config: PlaneConfig,
    regions: Regions,
    address: str,
    dial: Callable[[int], socket.socket],
    rails: Sequence[Rail],
) -> DataPlane:
    store, identity = regions.store, regions.identity
    assert store is not None
    if backend == "mooncake":
        return mooncake.MooncakePlane(store, config, address)
    if backend == "nixl":
        return nixl.NixlPlane(store, identity.hugepage_path, config, address)
    assert backend == "builtin", backend
    return builtin.BuiltinPlane(
        regions.index,
        identity.name,
        store,
        identity.hugepage_path,
        dial,
        rails,
        config.transfer_protocol,
    )
