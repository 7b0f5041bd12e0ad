# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Who is in the cluster: this server's registration, and the list of the others.

A registry that does not answer, or refuses, stops nobody: the last list stays in force until it is
repaired. A lost registration (the lease ran out, or the registry was wiped) is made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ..errors import RadixError
from ..node import Runner
from .registry import LEASE_S, Member, NameTaken, Registry

__all__ = ["Membership"]

_log = logging.getLogger("radixshmem.server")

_RELIST_S = 2.0
_MEMBERS_PER_S = 64  # a list of more members is asked for less often
_RETRY_S = 0.5

Changed = Callable[[Sequence[Member], dict[str, int]], None]


class Membership:
    """Runs the registry in a thread of its own. `changed(members, epochs)` hears of every list."""

    def __init__(
        self,
        registry: Registry,
        run: Runner,
        node: str,
        instance: int,
        where: tuple[str, int],
        changed: Changed,
        lease_s: float = LEASE_S,
    ) -> None:
        self._registry = registry
        self._run = run
        self._node = node
        self._instance = instance
        self._address, self._port = where
        self._changed = changed
        self._lease_s = lease_s
        self._registering = asyncio.Lock()
        self._look = asyncio.Event()
        self._hint: asyncio.Future[bool] | None = None
        self.me: Member | None = None
        self.members: tuple[Member, ...] = ()
        self.last_error = ""

    async def join(self) -> Member:
        """Register. NameTaken when a living server has the name; RegistryUnavailable when nobody
        answers: `run` goes on trying."""
        member = await self._register()
        await self._list()
        return member

    async def run(self) -> None:
        """Keep the registration and the list, for ever."""
        renew = asyncio.create_task(self._keep())
        try:
            while True:
                await self._wait()
                if not await self._attempt(self._look_around()):
                    await asyncio.sleep(_RETRY_S)
        finally:
            if self._hint is not None:  # nobody waits for it any more, nor for its error
                self._hint.add_done_callback(lambda hint: hint.cancelled() or hint.exception())
            renew.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renew

    def look(self) -> None:
        """Ask the registry soon: something changed."""
        self._look.set()

    async def leave(self) -> None:
        try:
            await self._run(self._registry.leave)
        except Exception as error:  # the others see it when the lease has run out
            _log.warning("node %s could not leave the registry: %s", self._node, error)

    async def close(self) -> None:
        await self._run(self._registry.close)

    async def raise_epoch(self, key: str, above: int) -> int:
        """The new epoch. Afterwards all are known that may have joined without seeing it."""
        epoch = await self._run(self._registry.raise_epoch, key, above)
        await self._list()
        return epoch

    async def _wait(self) -> None:
        interval = max(_RELIST_S, len(self.members) / _MEMBERS_PER_S)
        if self._hint is None:
            self._hint = asyncio.ensure_future(self._run(self._registry.wait_change, interval))
        look = asyncio.ensure_future(self._look.wait())
        await asyncio.wait((self._hint, look), return_when=asyncio.FIRST_COMPLETED)
        if self._hint.done():
            failed = self._hint.exception() is not None
            self._hint = None
            if failed:  # no hints: ask at intervals
                await asyncio.wait((look,), timeout=_RETRY_S)
        look.cancel()
        self._look.clear()

    async def _list(self) -> bool:
        """Whether this server is listed itself."""
        members, epochs = await self._run(self._registry.members_and_epochs)
        listed = any(member.instance == self._instance for member in members)
        if self.last_error and listed:  # before, the name may be taken
            _log.info("the registry answers again, and lists node %s", self._node)
            self.last_error = ""
        self.members = tuple(members)
        self._changed(self.members, epochs)
        return listed

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            await self._attempt(self._renew())

    async def _renew(self) -> None:
        if self.me is not None and not await self._run(self._registry.renew):
            await self._register_anew()

    async def _look_around(self) -> None:
        if self.me is None or not await self._list():
            await self._register_anew()

    async def _attempt(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether it succeeded. Whatever it raises is told, and may be over the next time."""
        try:
            await work
        except NameTaken as error:
            self._name_taken(error)
        except Exception as error:
            self._unavailable(error)
        else:
            return True
        return False

    async def _register(self) -> Member:
        async with self._registering:
            self.me = await self._run(
                self._registry.join, self._node, self._instance, self._address, self._port
            )
            return self.me

    async def _register_anew(self) -> None:
        was = self.me
        now = await self._register()
        if was is None:
            _log.info("node %s has joined with rank %d", self._node, now.rank)
        else:
            _log.warning("the registration of node %s was lost and made anew", self._node)
        self.look()

    def _name_taken(self, error: NameTaken) -> None:
        if self.last_error != str(error):
            _log.error("%s", error)
        self.last_error = str(error)

    def _unavailable(self, error: Exception) -> None:
        if not self.last_error:
            unexpected = not isinstance(error, (RadixError, OSError))
            _log.warning(
                "the registry cannot be used, the last members stay: %s", error, exc_info=unexpected
            )
        self.last_error = str(error) or repr(error)
