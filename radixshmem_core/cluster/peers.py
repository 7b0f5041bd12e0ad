# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What this server knows of each peer, and how it asks one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import nullcontext

from ..errors import RadixError
from ..tasks import cancel_all
from . import wire
from .peer_link import PeerLink
from .registry import LEASE_S, Member

__all__ = ["Peer", "Peers"]

_log = logging.getLogger("radixshmem.server")

_ASK_TIMEOUT_S = 2.0
_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 1.0
_HEARTBEAT_S = 1.0
_LINGER_S = 2 * LEASE_S
_PEERS_PER_S = 10  # heartbeats of a server in a large cluster
_CONNECT_AT_ONCE = 8  # all servers of a large cluster may begin at the same moment

Dialer = Callable[[str, int, str], Awaitable[socket.socket]]


class Peer:
    """One other member, from its first listing until it leaves or is another instance."""

    def __init__(self, member: Member, dial: Dialer) -> None:
        self.member = member
        self._dial = dial
        self.description: wire.Description | None = None
        self.reachable = False
        self.last_error = ""
        self.unlisted_at: float | None = None
        self.link = PeerLink(
            f"{member.node} ({member.address}:{member.port})", lambda: self.dial(wire.CONTROL)
        )

    @property
    def name(self) -> str:
        return self.member.node

    async def dial(self, channel: str) -> socket.socket:
        """An authenticated connection to this peer."""
        return await self._dial(self.member.address, self.member.port, channel)

    def linger(self) -> bool:
        """The registry does not list it: whether it is to stay, because it answers."""
        if self.unlisted_at is None:
            self.unlisted_at = time.monotonic()
        return self.reachable and time.monotonic() - self.unlisted_at < _LINGER_S

    def hear(self, description: wire.Description) -> bool:
        """Take what the peer says of itself. Returns whether it is news."""
        news = description != self.description or not self.reachable
        self.description = description
        self.reachable = True
        self.last_error = ""
        return news

    def lose(self, error: Exception) -> bool:
        """It does not answer. Returns whether that is news."""
        news = self.reachable or not self.last_error
        self.reachable = False
        self.last_error = str(error)
        return news


class Peers:
    """All peers of a server; tells each of every change here, and asks now and then."""

    def __init__(
        self, dial: Dialer, describe: Callable[[], wire.Description], changed: Callable[[], None]
    ) -> None:
        """`changed()` is called after something of a peer changed."""
        self._dial = dial
        self._describe = describe
        self._changed = changed
        self._by_instance: dict[int, Peer] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._wakes: dict[int, asyncio.Event] = {}
        self._connecting = asyncio.Semaphore(_CONNECT_AT_ONCE)

    def __iter__(self) -> Iterator[Peer]:
        return iter(sorted(self._by_instance.values(), key=lambda peer: peer.member.rank))

    def __len__(self) -> int:
        return len(self._by_instance)

    def of_rank(self, rank: int) -> Peer | None:
        return next((p for p in self._by_instance.values() if p.member.rank == rank), None)

    def set_members(self, members: Sequence[Member], own_instance: int) -> None:
        """Take a new list of the registry.

        Who answers stays for a while without being listed, so that nobody is lost while all
        register anew with a registry that has lost its data.
        """
        listed = {m.instance: m for m in members if m.instance != own_instance}
        ranks = {member.rank for member in members}
        gone = [
            number
            for number, peer in self._by_instance.items()
            if listed.get(number) != peer.member
            and (number in listed or peer.member.rank in ranks or not peer.linger())
        ]
        for number in gone:
            self._end(number)
        for number, member in listed.items():
            if number not in self._by_instance:
                self._begin(number, Peer(member, self._dial))
            self._by_instance[number].unlisted_at = None
        if gone:
            self._tell_changed()

    def tell(self) -> None:
        """Send what changed here to everybody."""
        for wake in self._wakes.values():
            wake.set()

    def hear(self, description: wire.Description) -> bool:
        """A peer asked, and said what it is. False: the registry has not told of it yet."""
        peer = self._by_instance.get(description.instance)
        if peer is None:
            return False
        if not peer.reachable:
            self._wakes[description.instance].set()  # ask it at once, not after the back-off
        elif peer.hear(description):
            self._tell_changed()
        return True

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for number in list(self._by_instance):
            self._forget(number)
        await cancel_all(tasks)

    def _begin(self, number: int, peer: Peer) -> None:
        self._by_instance[number] = peer
        wake = self._wakes[number] = asyncio.Event()
        peer.link.lost = wake.set
        self._tasks[number] = asyncio.create_task(self._follow(peer, wake))

    def _end(self, number: int) -> None:
        task = self._tasks[number]
        self._forget(number)
        task.cancel()

    def _forget(self, number: int) -> None:
        del self._by_instance[number], self._tasks[number], self._wakes[number]

    def _tell_changed(self) -> None:
        try:
            self._changed()
        except Exception:  # the next change is told again
            _log.exception("a change of the peers is not taken in")

    async def _follow(self, peer: Peer, wake: asyncio.Event) -> None:
        retry = _FIRST_RETRY_S
        try:
            while peer in self._by_instance.values():  # a cancellation may be swallowed
                wake.clear()
                pause = max(_HEARTBEAT_S, len(self) / _PEERS_PER_S)
                try:
                    async with self._connecting if not peer.link.connected else nullcontext():
                        reply = await peer.link.ask(
                            wire.Describe(mine=self._describe()), _ASK_TIMEOUT_S
                        )
                    if isinstance(reply, wire.Described) and peer.hear(reply.mine):
                        self._tell_changed()
                    retry = _FIRST_RETRY_S
                except Exception as error:  # whatever it is, it is asked again
                    if not isinstance(error, RadixError):
                        _log.exception("peer %s", peer.name)
                    if peer.lose(error):
                        _log.info("peer %s: %s", peer.name, error)
                        self._tell_changed()
                    pause = retry
                    retry = min(_LAST_RETRY_S, retry * 2)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(wake.wait(), pause)
        finally:
            await peer.link.close()
