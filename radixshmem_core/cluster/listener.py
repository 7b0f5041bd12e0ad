# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The one TCP port of a server, for all channels.

Nothing is read beyond the handshake: the handler of the channel gets the bare socket.
"""

from __future__ import annotations

import asyncio
import collections
import errno
import functools
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from ..acceptor import Acceptor
from ..errors import RadixError
from ..tasks import cancel_all, log_failure
from .auth import HANDSHAKE_S, AuthError, greet_dialer
from .streams import socket_address, tune

__all__ = ["Handler", "Listener"]

_log = logging.getLogger("radixshmem.cluster")

_BACKLOG = 256

Handler = Callable[[socket.socket], Awaitable[None]]
"""Gets an authenticated, non-blocking socket, which is its own from then on."""


class Listener:
    """Accepts, authenticates, and hands each connection to the handler of its channel.

    Connections that have not authenticated yet are at most `max_unauthenticated`: the one that has
    been waiting longest makes room.
    """

    def __init__(
        self,
        token: bytes,
        handlers: Mapping[str, Handler],
        *,
        max_unauthenticated: int = 64,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._token = token
        self._handlers = dict(handlers)
        self._most = max_unauthenticated
        self._handshake_s = handshake_s
        self._tasks: set[asyncio.Task[None]] = set()  # one for each connection
        self._waiting: dict[asyncio.Task[None], socket.socket] = {}  # oldest first
        self._handed: set[asyncio.Task[None]] = set()  # those whose handler has the connection
        self._figures: collections.Counter[str] = collections.Counter()
        self._acceptor = Acceptor("a connection of a peer", self._accepted, self._waiting.values)

    async def open(self, address: str, port: int, port_range: range) -> int:
        """Listen at `port`, or for 0 at the first free one of the range; the port in use."""
        listening = _listen(address, [port] if port else port_range)
        self._acceptor.start(listening)
        return int(listening.getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end the handlers."""
        self._acceptor.close()
        await cancel_all(self._tasks)

    def figures(self) -> dict[str, int]:
        """Connections so far: accepted, authenticated, and refused by kind (see AuthError)."""
        return dict(self._figures)

    def _accepted(self, connection: socket.socket, peer: Any) -> None:
        self._figures["accepted"] += 1
        if len(self._waiting) >= self._most:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.cancel()
            self._refuse("crowded", "the oldest", "is one of too many that have not authenticated")
        served = self._serve(connection, f"{peer[0]}:{peer[1]}")
        task = asyncio.get_running_loop().create_task(served)
        self._tasks.add(task)
        self._waiting[task] = connection
        task.add_done_callback(functools.partial(self._ended, connection))

    def _ended(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._waiting.pop(task, None)
        if task not in self._handed:
            connection.close()
        self._handed.discard(task)
        log_failure(task, "the connection of a peer")

    async def _serve(self, connection: socket.socket, peer: str) -> None:
        try:
            tune(connection)
            channels = self._handlers
            channel = await greet_dialer(connection, self._token, channels, self._handshake_s)
        except AuthError as error:
            self._refuse(error.kind, peer, str(error))
            return
        except OSError as error:
            self._refuse("gone", peer, f"ended the connection ({error})")
            return
        self._figures["authenticated"] += 1
        task = asyncio.current_task()
        assert task is not None
        self._waiting.pop(task, None)
        self._handed.add(task)
        await self._handlers[channel](connection)

    def _refuse(self, kind: str, peer: str, why: str) -> None:
        self._figures[kind] += 1
        level = logging.WARNING if self._figures[kind] == 1 else logging.DEBUG
        _log.log(level, "refusing %s: it %s (%s; further ones are only counted)", peer, why, kind)


def _listen(address: str, ports: Iterable[int]) -> socket.socket:
    """A socket that listens at the first port that is free: bound before it is published."""
    for port in ports:
        try:
            family, target = socket_address(address, port)
            return _listening_socket(family, target)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise RadixError(
                    f"cannot listen at {address}, port {port} ({error.strerror}); is that an "
                    "address of this machine? See --rpc-address and --rpc-interface"
                ) from error
    listed = list(ports)
    if len(listed) == 1:
        raise RadixError(
            f"port {listed[0]} of {address} is taken; give another --rpc-port, or 0 to choose one"
        )
    raise RadixError(
        f"no port from {listed[0]} to {listed[-1]} of {address} is free; give a larger --port-range"
    )


def _listening_socket(family: int, target: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(target)
        listening.listen(_BACKLOG)  # of two that have bound the same port, one fails here
    except BaseException:
        listening.close()
        raise
    return listening
