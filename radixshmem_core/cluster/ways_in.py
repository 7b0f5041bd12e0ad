# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What peers read this node through: a responder, RDMA devices, and the plane that moves slots."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any

from .. import _core
from ..config import ServerConfig
from ..node import Runner
from ..regions import Regions
from .planes import check_backend, open_plane
from .planes.base import DataPlane
from .planes.rails import Rail
from .verbs import Verbs

__all__ = ["WaysIn"]

_log = logging.getLogger("radixshmem.server")


class WaysIn:
    """Open while there is an index, before peers hear of it."""

    def __init__(self, config: ServerConfig, run: Runner) -> None:
        """`run` waits elsewhere for what takes long."""
        self._config = config
        self._run = run
        self._verbs = Verbs(config)
        self._responder: _core.Responder | None = None
        self.plane: DataPlane | None = None
        """None for an index without slots, and where none starts: then nothing is pulled."""
        self._reason = ""

    async def check(self) -> None:
        """Before all else: RadixError for devices or a data plane that cannot be had here."""
        if self._config.slot_region_bytes is not None:
            await self._run(check_backend, self._config.transfer_backend)
        await self._run(self._verbs.open)

    async def open(
        self, regions: Regions, address: str, dial: Callable[[int], socket.socket]
    ) -> None:
        """`dial(rank)` gives an index stream to a peer, in any thread."""
        rails: list[Rail] = []
        if regions.store is not None:
            rails = await self._run(self._open_plane, regions, address, dial)
        self._responder = await self._run(
            _core.Responder.start,
            regions.index,
            None if regions.store is None else regions.store.data_view(),
        )
        await self._run(self._verbs.serve, self._responder, rails)

    async def close(self) -> None:
        plane, responder = self.plane, self._responder
        self.plane = self._responder = None
        async with contextlib.AsyncExitStack() as ends:  # the last first, whatever one raises
            if responder is not None:
                ends.push_async_callback(self._run, responder.stop)
            if plane is not None:
                ends.push_async_callback(self._run, plane.close)

    def serve(self, stream: socket.socket) -> None:
        """An index stream of a peer, which is the responder's from now on."""
        if self._responder is None:
            stream.close()
            return
        with contextlib.suppress(ValueError):  # who asked went away meanwhile
            self._responder.add(stream.detach())

    @property
    def plane_name(self) -> str:
        return "" if self.plane is None else self.plane.name

    def report(self) -> dict[str, Any]:
        """For `radix-server status`."""
        report: dict[str, Any] = {
            "data_plane": self.plane_name,
            "data_plane_reason": self._reason,
            "slots_of_peers": [] if self.plane is None else self.plane.figures(),
            "verbs": self._verbs.report(),
        }
        if self._responder is not None:
            report["responder"] = self._responder.figures()
        return report

    def _open_plane(
        self, regions: Regions, address: str, dial: Callable[[int], socket.socket]
    ) -> list[Rail]:
        """The devices that peers read the slots through, if the plane has none of its own."""
        assert regions.store is not None
        try:
            rails = self._verbs.open_rails(regions.store.data_view())
            plane, reason = open_plane(self._config, regions, address, dial, rails)
        except Exception as error:  # engines of others raise what they like
            _log.error("%s: no data plane, so nothing is pulled: %s", self._config.name, error)
            self._reason = f"none: {error}"
            return []
        self.plane, self._reason = plane, reason
        return rails if plane.name == "builtin" else []
