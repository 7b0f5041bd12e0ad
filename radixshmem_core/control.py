# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The control socket of a server: accepts connections and answers their requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from .acceptor import Acceptor
from .errors import RadixError
from .messages import PROTOCOL_VERSION, Pulls, Reply, Request
from .rpc import ProtocolError, failure_of, frame, read_request, write_reply
from .tasks import cancel_all, log_failure

__all__ = ["ControlSocket", "ReplyWithDescriptor"]

_log = logging.getLogger("radixshmem.server")

_BACKLOG = 128

Handler = Callable[[Request, socket.socket], Awaitable["Reply | ReplyWithDescriptor"]]
Stream = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ReplyWithDescriptor:
    """A reply that hands over an open descriptor, which is closed here afterwards."""

    def __init__(self, reply: Reply, descriptor: socket.socket) -> None:
        self.reply = reply
        self.descriptor = descriptor


class ControlSocket:
    """A listening UNIX socket. `handle` answers requests, `hung_up` hears of every ending."""

    def __init__(
        self, path: str, handle: Handler, pulls: Stream, hung_up: Callable[[], None]
    ) -> None:
        """`pulls` runs a connection that said `Pulls`, to its end."""
        self._path = path
        self._handle = handle
        self._pulls = pulls
        self._hung_up = hung_up
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        self._acceptor = Acceptor("a control connection", self._accepted, self._connections.values)
        self._inode = -1

    async def open(self, mode: int, gid: int) -> None:
        """Bind and listen. The file has its final mode before anybody can connect."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind(self._path)
            self._inode = os.stat(self._path).st_ino
            os.chmod(self._path, mode)
            if gid >= 0:
                os.chown(self._path, -1, gid)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            self._unlink()
            raise RadixError(
                f"cannot listen at {self._path} ({error.strerror}); choose another --endpoint"
            ) from error
        self._acceptor.start(listener)

    async def close(self) -> None:
        """Stop listening, end all connections, remove the socket file if it is still ours."""
        self._acceptor.close()
        await cancel_all(self._connections)
        self._unlink()

    def _unlink(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)

    def _accepted(self, connection: socket.socket, _: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._connections[task] = connection
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        connection = self._connections.pop(task)
        if task.cancelled():
            connection.close()  # a task that is cancelled before its first step closes nothing
        log_failure(task, "a control connection")
        self._hung_up()

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            await self._answer(reader, writer, connection)
        except ProtocolError as error:
            _log.warning("closing a control connection: %s", error)
        except ConnectionError:
            pass  # the peer went away
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: socket.socket
    ) -> None:
        while (request := await read_request(reader)) is not None:
            try:
                if request.protocol != PROTOCOL_VERSION:
                    raise RadixError(
                        f"the client speaks control protocol {request.protocol}, the server "
                        f"{PROTOCOL_VERSION}; install the same version of radixshmem for both"
                    )
                if isinstance(request, Pulls):
                    await self._pulls(reader, writer)
                    return
                reply = await self._handle(request, peer)
            except ProtocolError:
                raise
            except Exception as error:
                _log.debug("refusing %s: %s", type(request).__name__, error)
                reply = failure_of(error)
            if isinstance(reply, ReplyWithDescriptor):
                with reply.descriptor:
                    await _send_with_descriptor(writer, peer, reply)
            else:
                await write_reply(writer, reply)


async def _send_with_descriptor(
    writer: asyncio.StreamWriter, peer: socket.socket, reply: ReplyWithDescriptor
) -> None:
    """Past the stream, whose buffer must be empty: a descriptor goes with the first byte."""
    await writer.drain()
    while writer.transport.get_write_buffer_size():
        await asyncio.sleep(0.001)
    data = frame(reply.reply)
    sent = socket.send_fds(peer, [data[:1]], [reply.descriptor.fileno()])
    writer.write(data[sent:])
    await writer.drain()
