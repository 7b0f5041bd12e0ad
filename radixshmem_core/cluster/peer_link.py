# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Both ends of a control channel between two servers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable

import msgspec

from ..errors import RadixError
from ..messages import Failure
from ..rpc import ProtocolError, failure_of
from ..tasks import Tasks, cancel_all
from . import wire
from .dialer import PeerUnreachable

__all__ = ["PeerLink", "serve_peer"]

_log = logging.getLogger("radixshmem.server")

_MAX_UNDER_WAY = 64  # requests of one peer that are answered at the same time
_LIMIT = 1 << 20

Dial = Callable[[], Awaitable[socket.socket]]
Handler = Callable[[wire.PeerRequest], Awaitable[wire.PeerReply]]


class PeerLink:
    """The asking end: one connection, made when it is needed, several requests at once."""

    def __init__(self, name: str, dial: Dial) -> None:
        self._name = name
        self._dial = dial
        self._connecting = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[wire.PeerReply]] = {}
        self._ids = itertools.count(1)
        self.lost: Callable[[], None] = lambda: None
        """Called when the connection ends."""

    @property
    def connected(self) -> bool:
        return self._writer is not None

    async def ask(self, request: wire.PeerRequest, timeout_s: float) -> wire.PeerReply:
        """The reply. PeerUnreachable when there is none in time; RadixError when it was refused."""
        asking = asyncio.ensure_future(self._ask(request))
        asking.add_done_callback(_seen)  # wait_for leaves its error alone when it is cancelled
        try:
            return await asyncio.wait_for(asking, timeout_s)
        except asyncio.TimeoutError:
            what = type(request).__name__
            raise PeerUnreachable(
                f"peer {self._name} did not answer {what} within {timeout_s:g} s"
            ) from None
        except OSError as error:
            raise PeerUnreachable(f"peer {self._name} cannot be reached: {error}") from error

    async def _ask(self, request: wire.PeerRequest) -> wire.PeerReply:
        writer = await self._connect()
        number = next(self._ids) & 0xFFFFFFFF
        answer: asyncio.Future[wire.PeerReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            writer.write(wire.encode(number, request))
            await writer.drain()
            reply = await answer
        finally:
            self._waiting.pop(number, None)
        if isinstance(reply, Failure):
            raise RadixError(f"peer {self._name}: {reply.message}")
        return reply

    async def _connect(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                connection = await self._dial()
                reader, self._writer = await asyncio.open_connection(sock=connection, limit=_LIMIT)
                self._receiver = asyncio.create_task(self._receive(reader, self._writer))
            return self._writer

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reason = "it closed the connection"
        try:
            while (frame := await wire.read_frame(reader)) is not None:
                number, body = frame
                answer = self._waiting.get(number)
                if answer is not None and not answer.done():
                    answer.set_result(wire.replies.decode(body))
        except (ProtocolError, msgspec.MsgspecError, OSError) as error:
            reason = str(error)
        finally:
            writer.close()
            if self._writer is writer:
                self._writer = None
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(PeerUnreachable(f"peer {self._name} went away: {reason}"))
            self.lost()

    async def close(self) -> None:
        if self._receiver is not None:
            await cancel_all([self._receiver])


def _seen(task: asyncio.Future[wire.PeerReply]) -> None:
    if not task.cancelled():
        task.exception()


async def serve_peer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handler
) -> None:
    """The answering end, until the connection ends. ProtocolError for what is no request."""
    under_way = Tasks("an answer to a peer")
    room = asyncio.Semaphore(_MAX_UNDER_WAY)

    async def answer(number: int, request: wire.PeerRequest) -> None:
        try:
            try:
                reply = await handle(request)
            except Exception as error:
                _log.debug("refusing %s of a peer: %s", type(request).__name__, error)
                reply = failure_of(error)
            writer.write(wire.encode(number, reply))
            await writer.drain()
        except OSError:
            pass  # the peer went away
        finally:
            room.release()

    try:
        while (frame := await wire.read_frame(reader)) is not None:
            number, body = frame
            try:
                request = wire.requests.decode(body)
            except msgspec.MsgspecError as error:
                raise ProtocolError(f"not a request of the peer protocol: {error}") from error
            await room.acquire()
            under_way.start(answer(number, request))
    finally:
        await under_way.cancel()
        with contextlib.suppress(OSError):
            writer.close()
