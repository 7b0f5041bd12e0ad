# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The life of one node: waiting for a geometry, configuring, ready, failed, closed.

Lives in the event loop of its server; everything that blocks runs in `run`, an executor call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from . import _core
from ._version import __version__
from .config import ServerConfig
from .errors import GeometryMismatch, RadixError
from .host import access_of_group, check_memory, note_memlock
from .messages import Info, Lookups
from .plan import SlotPlan, plan_slots, smallest_plan
from .regions import Regions, adopt_regions, clear_leftovers, create_regions
from .values import Geometry

__all__ = ["Events", "Node", "Runner"]

_log = logging.getLogger("radixshmem.server")
_T = TypeVar("_T")

Events = Callable[[str, dict[str, Any]], None]
"""Called with what happened ("waiting", "ready", ...) and its figures."""


class Runner(Protocol):
    """Runs a blocking call in a thread of the server."""

    async def __call__(self, function: Callable[..., _T], *arguments: Any) -> _T: ...


class ClusterView(Protocol):
    """What clients are told of the cluster."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def data_plane(self) -> str: ...


class _Alone:
    rank = 0
    world_size = 1
    data_plane = ""


class Node:
    """The name, its regions, and the state that clients see."""

    def __init__(self, config: ServerConfig, run: Runner, events: Events) -> None:
        self.config = config
        self.mode = "waiting"
        self.last_error = ""
        self.regions: Regions | None = None
        self.owner: _core.IndexServer | None = None
        self._run = run
        self._events = events
        self._started = time.monotonic()
        self._settled = asyncio.Event()
        self._wanted: Geometry | None = None
        self._defaults = (config.slot_align, config.register_chunk_tokens)
        self._creation: asyncio.Task[None] | None = None
        self._adopting = False
        self._held = config.expected_min_nodes > 1  # not ready before enough nodes have joined
        self.cluster: ClusterView = _Alone()
        self._lookups = None
        if config.registry:
            self._lookups = Lookups(
                transport=config.index_transport,
                timeout_us=config.query_timeout_us,
                index_dev=config.index_dev,
                gid_idx=config.gid_idx,
            )

    # ------------------------------------------------------------ state

    def info(self) -> Info:
        regions = self.regions
        return Info(
            mode=self.mode,
            last_error=self.last_error,
            index_name=self.config.name,
            rank=self.cluster.rank,
            world_size=self.cluster.world_size,
            data_plane=self.cluster.data_plane,
            geometry=regions.identity.geometry if regions else None,
            hugepage_path=regions.identity.hugepage_path if regions else self.config.hugepage_path,
            uptime=time.monotonic() - self._started,
            version=__version__,
            lookups=self._lookups,
        )

    async def wait_settled(self, timeout_s: float) -> Info:
        """The state once it is "ready" or "failed", or after `timeout_s`."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._settled.wait(), max(0.0, timeout_s))
        return self.info()

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        """Claim the name; adopt what a dead server left to its clients, or clear it away."""
        mode, gid = access_of_group(self.config.group)
        self.owner = await self._run(_core.IndexServer.claim, self.config.name, mode, gid)
        if await self._run(self.owner.found) == "adoptable":
            self._adopting = True
            try:
                regions = await self._run(adopt_regions, self.owner, self.config)
            except RadixError as error:
                _log.error("%s: cannot adopt, starting empty: %s", self.config.name, error)
            else:
                self._become_ready(regions)
                return
            self._adopting = False
        await self._run(clear_leftovers, self.owner, self.config)
        least = smallest_plan(self.config)
        check_memory(self.config, least, self.config.slot_region_bytes or 0)
        note_memlock(self.config)

    def announce(self) -> None:
        """Tell what `open` came to, once clients can connect."""
        if self.regions is None:
            self._events("waiting", {"name": self.config.name})
        else:
            self._announce_ready("adopted", self.regions)

    async def configure(self, wanted: dict[str, Any]) -> Info:
        """Take the geometry of a client. The first one wins; equal ones wait for its regions."""
        resolved = Geometry.from_dict(wanted).resolve(*self._defaults)
        if self._wanted is None:
            plan = self._plan(resolved)
            self._wanted = plan.geometry
            self.mode = "configuring"
            self._settled.clear()
            self._creation = asyncio.create_task(self._create(plan))
        else:
            difference = self._wanted.difference(resolved, mine="server", theirs="client")
            if difference:
                raise GeometryMismatch(
                    f"{self.config.name} already has another geometry; use the same one, or a "
                    f"server of another name:\n{difference}"
                )
        if self._creation is not None:
            await asyncio.shield(self._creation)
        return self.info()

    def _plan(self, geometry: Geometry) -> SlotPlan:
        try:
            return plan_slots(self.config, geometry)
        except ValueError as error:
            self.last_error = str(error)
            raise

    async def _create(self, plan: SlotPlan) -> None:
        assert self.owner is not None
        self._events("configuring", {"geometry": plan.geometry_dict()})
        try:
            regions = await self._run(create_regions, self.owner, self.config, plan)
        except Exception as error:
            self.last_error = str(error)
            self.mode = "waiting" if isinstance(error, ValueError) else "failed"
            self._wanted = None
            self._creation = None
            if self.mode == "failed":
                self._settled.set()
            self._events("failed", {"error": str(error)})
            raise
        self._become_ready(regions)
        self._announce_ready("ready", regions)

    def _become_ready(self, regions: Regions) -> None:
        self.regions = regions
        self._wanted = regions.identity.geometry_value()
        self._defaults = (regions.identity.slot_align, regions.identity.register_chunk_tokens)
        self.last_error = ""
        if not self._held:
            self._settle_ready()

    def _settle_ready(self) -> None:
        self.mode = "ready"
        self.last_error = ""
        self._settled.set()

    def hold(self, reason: str) -> None:
        """Not ready yet for a reason that clients should see."""
        if self._held:
            self.last_error = reason

    def enough_members(self) -> None:
        """Nothing holds readiness any more."""
        self._held = False
        if self.regions is not None:
            self._settle_ready()

    def _announce_ready(self, event: str, regions: Regions) -> None:
        self._events(event, {"name": self.config.name, "geometry": regions.identity.geometry})

    async def forget_geometry(self) -> None:
        """Delete the regions and wait for a geometry again. Requires: nothing uses them."""
        regions, owner = self.regions, self.owner
        assert regions is not None
        assert owner is not None
        self.regions = self._wanted = self._creation = None
        self.mode = "waiting"
        self._settled.clear()
        self._defaults = (self.config.slot_align, self.config.register_chunk_tokens)
        await self._run(regions.close, owner)
        mode, gid = access_of_group(self.config.group)
        self.owner = await self._run(_core.IndexServer.claim, self.config.name, mode, gid)
        self._events("waiting", {"name": self.config.name})

    async def settle(self) -> None:
        """Wait until no creation is under way; its outcome is in the state."""
        if self._creation is not None:
            await asyncio.gather(self._creation, return_exceptions=True)

    async def close(self, *, started: bool = True) -> None:
        """Delete the regions and give the name back. Requires: settled.

        A server that did not start leaves what it wanted to adopt to the next one.
        """
        regions, owner = self.regions, self.owner
        self.regions = self.owner = None
        self.mode = "waiting"
        if self._adopting and not started:
            if regions is not None:
                await self._run(regions.leave)
            return  # the name goes back with `owner`
        if regions is not None and owner is not None:
            await self._run(regions.close, owner)
        elif owner is not None:
            await self._run(owner.close)
