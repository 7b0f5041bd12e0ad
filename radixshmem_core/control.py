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

from .errors import RadixError
from .messages import PROTOCOL_VERSION, Reply, Request
from .rpc import ProtocolError, failure_of, read_request, write_reply
from .tasks import cancel_all

__all__ = ["ControlSocket"]

_log = logging.getLogger("radixshmem.server")

Handler = Callable[[Request, socket.socket], Awaitable[Reply]]


class ControlSocket:
    """A listening UNIX socket. `handle` answers requests, `hung_up` hears of every ending."""

    def __init__(self, path: str, handle: Handler, hung_up: Callable[[], None]) -> None:
        self._path = path
        self._handle = handle
        self._hung_up = hung_up
        self._server: asyncio.AbstractServer | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._inode = -1
        self._closing = False

    async def open(self, mode: int, gid: int) -> None:
        """Bind and listen. The file has its final mode before anybody can connect."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self._path)
            self._inode = os.stat(self._path).st_ino
            os.chmod(self._path, mode)
            if gid >= 0:
                os.chown(self._path, -1, gid)
            self._server = await asyncio.start_unix_server(self._accept, sock=listener)
        except OSError as error:
            listener.close()
            self._unlink()
            raise RadixError(
                f"cannot listen at {self._path} ({error.strerror}); choose another --endpoint"
            ) from error

    async def close(self) -> None:
        """Stop listening, end all connections, remove the socket file if it is still ours."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        await cancel_all(self._connections)
        self._unlink()

    def _unlink(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closing:  # accepted just before close() stopped listening
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except ProtocolError as error:
            _log.warning("closing a control connection: %s", error)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the peer went away, or the server closes
        finally:
            self._connections.discard(task)
            writer.close()
            self._hung_up()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("socket")
        while (request := await read_request(reader)) is not None:
            try:
                if request.protocol != PROTOCOL_VERSION:
                    raise RadixError(
                        f"the client speaks control protocol {request.protocol}, the server "
                        f"{PROTOCOL_VERSION}; install the same version of radixshmem for both"
                    )
                reply = await self._handle(request, peer)
            except Exception as error:
                _log.debug("refusing %s: %s", type(request).__name__, error)
                reply = failure_of(error)
            await write_reply(writer, reply)
