# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The RDMA devices of a server: those that its peers read it through, and its processes read them.

Peers name a device by its number on the responder: the one of index_dev first, then the rails.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from .. import _core
from ..config import ServerConfig
from ..errors import RadixError
from .planes.rails import Rail, open_rails
from .rdma import open_device

__all__ = ["Verbs"]

_log = logging.getLogger("radixshmem.server")


class Verbs:
    """Its methods wait for devices: not for an event loop."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._index_device: _core.VerbsDevice | None = None
        self._served: list[str] = []
        self._failure = ""

    def open(self) -> None:
        """At the start of a server, so that a wrong name or GID index ends it."""
        config = self._config
        if config.index_dev:
            try:
                self._index_device = open_device(config.index_dev, config.gid_idx)
            except RadixError as error:
                raise RadixError(
                    f"index_dev {config.index_dev!r} cannot be used: {error}; give a device of "
                    "/sys/class/infiniband, or leave --index-dev out"
                ) from error
            _log.info("%s: index_dev is %s", config.name, self._index_device.describe())
        for rail in open_rails(config):  # as a test; they are opened anew for each life of slots
            _log.info("%s: transfer_dev has %s", config.name, rail.device.describe())

    def open_rails(self, slots: memoryview) -> list[Rail]:
        """The devices of transfer_dev, with the memory that peers' slots are read to."""
        return open_rails(self._config, slots, first_number=int(self._index_device is not None))

    def serve(self, responder: _core.Responder, rails: Sequence[Rail]) -> None:
        """Let peers read through the devices. Pins all that they may read, which takes a while.

        Where that fails peers do without: it is logged and reported.
        """
        devices = [] if self._index_device is None else [self._index_device]
        devices += [rail.device for rail in rails]
        self._served, self._failure = [], ""
        if not devices:
            return
        try:
            responder.serve_verbs(devices)
        except (RadixError, OSError) as error:
            _log.error("%s: peers cannot read over RDMA: %s", self._config.name, error)
            self._failure = str(error)
        else:
            self._served = [device.describe() for device in devices]

    def report(self) -> dict[str, Any]:
        """Which devices peers may read through, or why not."""
        return {"devices": self._served, "error": self._failure}
