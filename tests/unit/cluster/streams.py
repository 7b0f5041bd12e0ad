# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Ends of connections for the tests of the handshake, and how they run."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from radixshmem_core.cluster.listener import Handler, Listener

__all__ = ["DEADLINE_S", "TOKEN", "echo", "listening", "pair", "raw", "run", "to_end"]

DEADLINE_S = 20.0
TOKEN = b"a token of the tests"
Result = TypeVar("Result")


def run(steps: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(steps, DEADLINE_S))


def pair() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    return ends


async def echo(connection: socket.socket) -> None:
    """A handler: send back what comes until the end."""
    loop = asyncio.get_running_loop()
    with connection:
        while data := await loop.sock_recv(connection, 4096):
            await loop.sock_sendall(connection, data)


@asynccontextmanager
async def listening(
    *, token: bytes = TOKEN, handler: Handler = echo, **more: Any
) -> AsyncIterator[tuple[Listener, int]]:
    """A listener for the channels "control" and "index", and its port."""
    listener = Listener(token, {"control": handler, "index": handler}, **more)
    port = await listener.open("127.0.0.1", 0, range(20000, 30000))
    try:
        yield listener, port
    finally:
        await listener.close()


async def raw(port: int) -> socket.socket:
    """A connection without a handshake."""
    connection = socket.socket()
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return connection


async def to_end(connection: socket.socket) -> bytes:
    """All that comes until the other side ends the connection."""
    loop = asyncio.get_running_loop()
    data = b""
    try:
        while part := await loop.sock_recv(connection, 65536):
            data += part
    except ConnectionResetError:
        pass
    return data
