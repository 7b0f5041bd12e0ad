# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The data planes, which move slots between nodes."""

from __future__ import annotations

import socket
from collections.abc import Callable

from ...config import ServerConfig
from ...regions import Regions
from .base import DataPlane
from .builtin import BuiltinPlane

__all__ = ["open_plane"]


def open_plane(
    config: ServerConfig,
    regions: Regions,
    address: str,
    dial: Callable[[int], socket.socket],
) -> tuple[DataPlane, str]:
    """The plane that `transfer_backend` asks for, and why it is this one."""
    assert regions.store is not None
    identity = regions.identity
    plane = BuiltinPlane(regions.index, identity.name, regions.store, identity.hugepage_path, dial)
    return plane, "it needs nothing"
