# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Sending and receiving control messages: asyncio streams at the server, sockets at the client."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator

import msgspec

from .config import check_text
from .errors import GeometryMismatch, RadixError, ServerNotReady
from .messages import MAX_MESSAGE_BYTES, Failure, Hello, Info, InfoReply, Reply, Request
from .ownership import region_file

__all__ = [
    "LONGEST_S",
    "ProtocolError",
    "ask",
    "ask_info",
    "ask_patiently",
    "connect",
    "exchange",
    "exchange_descriptor",
    "failure_of",
    "frame",
    "read_message",
    "read_reply",
    "read_request",
    "socket_path",
    "tell",
    "write_reply",
]

_LENGTH = struct.Struct("<I")
_MAX_SOCKET_PATH = 107  # sun_path has 108 bytes, the last one is 0
_SCHEME = "unix://"
_BODY_TIMEOUT_S = 10.0
LONGEST_S = 7 * 24 * 3600.0  # what a socket, poll() and asyncio can wait for
_LONGEST_REASON = MAX_MESSAGE_BYTES // 8  # in characters, of 4 bytes at most

_requests = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(Reply)
_encoder = msgspec.msgpack.Encoder()

_EXCEPTIONS: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "TimeoutError": TimeoutError,
    "RadixError": RadixError,
    "GeometryMismatch": GeometryMismatch,
    "ServerNotReady": ServerNotReady,
}


class ProtocolError(RadixError):
    """The other side sent something that is not a message of this protocol."""


def socket_path(endpoint: str, name: str) -> str:
    """The path of the control socket. ValueError for one that no socket can have."""
    check_text("endpoint", endpoint)
    if not endpoint:
        path = region_file(f"{name}.sock")
    elif endpoint.startswith(_SCHEME) and endpoint[len(_SCHEME) :].startswith("/"):
        path = endpoint[len(_SCHEME) :]
    else:
        raise ValueError(f"endpoint is {endpoint!r}; it must be unix:// and an absolute path")
    size = len(path.encode())
    if size > _MAX_SOCKET_PATH:
        raise ValueError(
            f"the control socket path {path} has {size} bytes, the system allows "
            f"{_MAX_SOCKET_PATH}; choose a shorter name, or a shorter path with "
            "--endpoint unix:///path (clients: endpoint=)"
        )
    return path


def frame(message: Request | Reply) -> bytes:
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {len(body)} bytes exceeds {MAX_MESSAGE_BYTES}")
    return _LENGTH.pack(len(body)) + body


def body_length(header: bytes) -> int:
    length = int(_LENGTH.unpack(header)[0])
    if length > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {length} bytes exceeds {MAX_MESSAGE_BYTES}")
    return length


# ---------------------------------------------------------------- server side


async def read_message(
    reader: asyncio.StreamReader,
    header_bytes: int,
    length_of: Callable[[bytes], int],
    timeout_s: float,
) -> tuple[bytes, bytes] | None:
    """(header, rest) of a message whose header tells, by `length_of`, how long the rest is.

    None at the end of the connection; ProtocolError when it ends inside a message, or when the rest
    takes over `timeout_s`.
    """
    try:
        header = await reader.readexactly(header_bytes)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise ProtocolError("the connection ended inside a message") from error
        return None
    try:
        rest = await asyncio.wait_for(reader.readexactly(length_of(header)), timeout_s)
    except asyncio.IncompleteReadError as error:
        raise ProtocolError("the connection ended inside a message") from error
    except asyncio.TimeoutError as error:
        raise ProtocolError(f"the rest of a message took over {timeout_s:g} s") from error
    return header, rest


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request; None at the end of the connection. ProtocolError for anything else."""
    message = await read_message(reader, _LENGTH.size, body_length, _BODY_TIMEOUT_S)
    if message is None:
        return None
    try:
        return _requests.decode(message[1])
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a request of this protocol: {error}") from error


async def write_reply(writer: asyncio.StreamWriter, reply: Reply) -> None:
    writer.write(frame(reply))
    await writer.drain()


def failure_of(error: Exception) -> Failure:
    """`error` as a reply that can be sent; the client raises the same kind again."""
    reason = str(error)[:_LONGEST_REASON].encode(errors="backslashreplace").decode()
    for kind in (type(error), *type(error).__mro__):
        if kind.__name__ in _EXCEPTIONS:
            return Failure(kind=kind.__name__, message=reason)
    return Failure(kind="RadixError", message=f"{type(error).__name__}: {reason}")


# ---------------------------------------------------------------- client side


def connect(path: str, timeout_s: float) -> socket.socket:
    """A connection to the server at `path`.

    ServerNotReady when nobody is there, TimeoutError when it takes none; with a timeout of 0 that
    is ServerNotReady too.
    """
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:  # no descriptor is left
        raise RadixError(
            f"cannot ask the radix-server at {path}: {error.strerror or error}"
        ) from None
    try:
        timeout_s = min(timeout_s, LONGEST_S)
        _connect_within(connection, path, timeout_s)
        connection.settimeout(timeout_s)
    except PermissionError:
        connection.close()
        raise RadixError(
            f"user {os.geteuid()} may not use the radix-server at {path}; run as its user, or "
            "start it with --group and be a member of that group"
        ) from None
    except OSError as error:
        connection.close()
        if isinstance(error, BlockingIOError) and timeout_s > 0:
            raise TimeoutError(
                f"the radix-server at {path} took no connection within {timeout_s:g} s: is it "
                "stopped?"
            ) from None
        raise ServerNotReady(
            f"no radix-server answers at {path} ({error.strerror or error}); start one, or give "
            "its endpoint"
        ) from None
    return connection


def _connect_within(connection: socket.socket, path: str, timeout_s: float) -> None:
    """Wait for a place in the server's queue, too, as settimeout() does not."""
    if timeout_s <= 0:
        connection.setblocking(False)
        connection.connect(path)
        return
    micros = max(1, round(timeout_s * 1e6))
    timeval = struct.pack("@ll", *divmod(micros, 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    connection.connect(path)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, 0))


def exchange(connection: socket.socket, request: Request, timeout_s: float) -> Reply:
    """Send and wait for the reply. TimeoutError at the deadline, ServerNotReady if it went away."""
    with _asking(connection, timeout_s):
        deadline = _send(connection, request, timeout_s)
        reply = _next_reply(connection, deadline)
    return checked(reply)


def exchange_descriptor(
    connection: socket.socket, request: Request, timeout_s: float
) -> tuple[Reply, socket.socket | None]:
    """As `exchange`; with the socket that came with the reply, if one did."""
    with _asking(connection, timeout_s), contextlib.ExitStack() as unwanted:
        deadline = _send(connection, request, timeout_s)
        first, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
        stream = socket.socket(fileno=descriptors[0]) if descriptors else None
        if stream is not None:
            unwanted.callback(stream.close)
        reply = _next_reply(connection, deadline, first)
        unwanted.pop_all()
    return checked(reply), stream


def _send(connection: socket.socket, request: Request, timeout_s: float) -> float:
    """Returns: the deadline for the reply."""
    timeout_s = min(timeout_s, LONGEST_S)
    deadline = time.monotonic() + timeout_s
    connection.settimeout(timeout_s)
    connection.sendall(frame(request))
    return deadline


def read_reply(connection: socket.socket) -> Reply:
    """The next reply on a connection that carries many, whenever it comes."""
    with _asking(connection, math.inf):
        connection.settimeout(None)
        first = connection.recv(1)
        reply = _next_reply(connection, time.monotonic() + _BODY_TIMEOUT_S, first)
    return checked(reply)


def checked(reply: Reply) -> Reply:
    """Raises what a Failure names."""
    if isinstance(reply, Failure):
        raise _EXCEPTIONS.get(reply.kind, RadixError)(reply.message)
    return reply


@contextlib.contextmanager
def _asking(connection: socket.socket, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise TimeoutError(
            f"the radix-server at {connection.getpeername()} did not answer within {timeout_s:g} s"
            ": is it stopped?"
        ) from None
    except OSError as error:
        raise ServerNotReady(f"the radix-server went away while asked ({error})") from None
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the radix-server speaks another protocol: {error}") from None


def _next_reply(connection: socket.socket, deadline: float, begin: bytes | None = None) -> Reply:
    """`begin`: bytes of it that were read already; empty at the end of the connection."""
    if begin == b"":
        raise ServerNotReady("the radix-server closed the connection instead of answering")
    begin = begin or b""
    header = begin + _receive(connection, _LENGTH.size - len(begin), deadline)
    return _replies.decode(_receive(connection, body_length(header), deadline))


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(size - len(data))
        if not part:
            raise ServerNotReady("the radix-server closed the connection instead of answering")
        data += part
    return bytes(data)


def ask(path: str, request: Request, timeout_s: float) -> Reply:
    """One request on a connection of its own."""
    with connect(path, timeout_s) as connection:
        return exchange(connection, request, timeout_s)


def tell(path: str, request: Request) -> None:
    """One request whose reply nobody reads: a server that is stopped gets it when it goes on.

    ServerNotReady when nobody answers there, or too many wait for it already.
    """
    with connect(path, 0) as connection, _asking(connection, 0):
        connection.sendall(frame(request))


def ask_info(path: str, request: Request, timeout_s: float) -> Info:
    return _info(ask(path, request, timeout_s))


def ask_patiently(
    path: str, request: Request, patience_s: float, check: Callable[[], object]
) -> Info:
    """As `ask_info`, for as long as it takes a server that answers others meanwhile.

    TimeoutError when it has left one without an answer for `patience_s`; what `check` raises, which
    is called as often.
    """
    with connect(path, patience_s) as connection, _asking(connection, patience_s):
        _send(connection, request, patience_s)
        while (begin := _first_byte(connection)) is None:
            check()
            ask(path, Hello(), patience_s)
        reply = _next_reply(connection, time.monotonic() + patience_s, begin)
    return _info(checked(reply))


def _first_byte(connection: socket.socket) -> bytes | None:
    """None when it has not come within the timeout of the connection; empty at its end."""
    try:
        return connection.recv(1)
    except TimeoutError:
        return None


def _info(reply: Reply) -> Info:
    if not isinstance(reply, InfoReply):
        raise ProtocolError(f"the radix-server answered {type(reply).__name__}, not its state")
    return reply.info
