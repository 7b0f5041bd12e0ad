# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The cluster token, and the handshake by which both ends of a connection prove that they have it.

    dialer -> listener   hello      magic "RXH1", u16 version, u16 0, char[16] channel, 32 B nonce
    listener -> dialer   challenge  magic "RXC1", u16 version, u16 0, 32 B nonce
    dialer -> listener   proof      HMAC-SHA256(token, text of role "dialer")
    listener -> dialer   proof      HMAC-SHA256(token, text of role "listener")

    text = "radixshmem handshake" 0, u16 version, char[8] role, char[16] channel, both nonces

Numbers are little-endian. The role keeps a proof from being sent back to its maker; the channel and
the version keep it from being used for another. The listener sends nothing but its challenge before
it has seen the proof. The handshake authenticates, it does not encrypt what follows.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import socket
import stat
import struct
from collections.abc import Collection, Coroutine
from typing import Any

from ..errors import RadixError

__all__ = [
    "HANDSHAKE_S",
    "HANDSHAKE_VERSION",
    "AuthError",
    "greet_dialer",
    "greet_listener",
    "load_token",
]

_log = logging.getLogger("radixshmem.cluster")

HANDSHAKE_VERSION = 1
HANDSHAKE_S = 5.0

_MIN_TOKEN_BYTES = 16
_MAX_TOKEN_BYTES = 4096
_PREFIX = b"radixshmem handshake\0"
_DIALER, _LISTENER = b"dialer", b"listener"
_HELLO = struct.Struct("<4sHH16s32s")
_CHALLENGE = struct.Struct("<4sHH32s")
_TEXT = struct.Struct("<H8s16s32s32s")
_HELLO_MAGIC, _CHALLENGE_MAGIC = b"RXH1", b"RXC1"
_NONCE_BYTES = 32
_PROOF_BYTES = 32


class AuthError(RadixError):
    """The other end is not a member of this cluster, or not one of this version.

    `kind`: "malformed", "version", "channel", "token", "timeout", or "gone" for an end without a
    word.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def load_token(path: str, *, loopback_only: bool) -> bytes:
    """The secret in the token file; empty without a file, for a cluster on loopback only."""
    if not path:
        if not loopback_only:
            raise ValueError(
                "peers reach this node over the network, but it has no cluster token; make one "
                f"with `{_how_to_make('FILE')}`, copy it to all nodes and give it to each with "
                "--cluster-token-file FILE"
            )
        _log.warning("no --cluster-token-file: every process on this machine may join the cluster")
        return b""
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            token = file.read(_MAX_TOKEN_BYTES + 1).strip()
    except OSError as error:
        raise ValueError(
            f"--cluster-token-file {path} cannot be read ({error.strerror}); make it with "
            f"`{_how_to_make(path)}`, the same on all nodes"
        ) from error
    if mode & 0o007:
        raise ValueError(
            f"--cluster-token-file {path} has mode {mode:04o}: every user of this machine may use "
            f"it; run `chmod 600 {path}`"
        )
    if not _MIN_TOKEN_BYTES <= len(token) <= _MAX_TOKEN_BYTES:
        raise ValueError(
            f"--cluster-token-file {path} holds {len(token)} bytes, it must be {_MIN_TOKEN_BYTES} "
            f"to {_MAX_TOKEN_BYTES}; make it with `{_how_to_make(path)}`, the same on all nodes"
        )
    return token


def _how_to_make(path: str) -> str:
    return f"(umask 077; head -c 32 /dev/urandom | base64 > {path})"


async def greet_listener(
    connection: socket.socket, token: bytes, channel: str, timeout_s: float = HANDSHAKE_S
) -> None:
    """The dialer's side, on a connected non-blocking socket. AuthError unless both have proven."""
    await _in_time(_greet_listener(connection, token, _channel_bytes(channel)), timeout_s)


async def greet_dialer(
    connection: socket.socket,
    token: bytes,
    channels: Collection[str],
    timeout_s: float = HANDSHAKE_S,
) -> str:
    """The listener's side: the channel that an authenticated dialer asked for."""
    names = {_channel_bytes(channel): channel for channel in channels}
    return names[await _in_time(_greet_dialer(connection, token, names), timeout_s)]


async def _greet_listener(connection: socket.socket, token: bytes, channel: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    ours = secrets.token_bytes(_NONCE_BYTES)
    hello = _HELLO.pack(_HELLO_MAGIC, HANDSHAKE_VERSION, 0, channel, ours)
    await loop.sock_sendall(connection, hello)
    answer = await _receive(connection, _CHALLENGE.size)
    magic, version, zero, theirs = _CHALLENGE.unpack(answer)
    _check(magic == _CHALLENGE_MAGIC and zero == 0, "malformed", "answers, but is no radix-server")
    _check_version(version)
    await loop.sock_sendall(connection, _proof(token, _DIALER, channel, ours, theirs))
    try:
        proof = await _receive(connection, _PROOF_BYTES)
    except AuthError as error:
        raise AuthError(
            "token", "refuses this node's token; is --cluster-token-file the same on both?"
        ) from error
    _check_proof(proof, _proof(token, _LISTENER, channel, ours, theirs))
    return channel


async def _greet_dialer(
    connection: socket.socket, token: bytes, channels: Collection[bytes]
) -> bytes:
    loop = asyncio.get_running_loop()
    hello = await _receive(connection, _HELLO.size)
    magic, version, zero, channel, theirs = _HELLO.unpack(hello)
    _check(
        magic == _HELLO_MAGIC and zero == 0, "malformed", "sends something else than a handshake"
    )
    ours = secrets.token_bytes(_NONCE_BYTES)
    challenge = _CHALLENGE.pack(_CHALLENGE_MAGIC, HANDSHAKE_VERSION, 0, ours)
    await loop.sock_sendall(connection, challenge)  # also tells the version
    _check_version(version)
    proof = await _receive(connection, _PROOF_BYTES)
    _check_proof(proof, _proof(token, _DIALER, channel, theirs, ours))
    _check(channel in channels, "channel", f"asks for an unknown channel {channel!r}")
    await loop.sock_sendall(connection, _proof(token, _LISTENER, channel, theirs, ours))
    return bytes(channel)


def _proof(token: bytes, role: bytes, channel: bytes, dialer: bytes, listener: bytes) -> bytes:
    text = _PREFIX + _TEXT.pack(HANDSHAKE_VERSION, role, channel, dialer, listener)
    return hmac.digest(token, text, "sha256")


def _check_proof(received: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(received, expected):
        raise AuthError("token", "has another token; is --cluster-token-file the same on both?")


def _check_version(version: int) -> None:
    if version != HANDSHAKE_VERSION:
        raise AuthError(
            "version",
            f"speaks handshake version {version}, this node {HANDSHAKE_VERSION}; install the same "
            "version of radixshmem on both",
        )


def _check(fits: bool, kind: str, message: str) -> None:
    if not fits:
        raise AuthError(kind, message)


async def _in_time(steps: Coroutine[Any, Any, bytes], timeout_s: float) -> bytes:
    try:
        return await asyncio.wait_for(steps, timeout_s)
    except asyncio.TimeoutError:
        raise AuthError("timeout", f"has not ended the handshake within {timeout_s:g} s") from None
    except OSError as error:
        raise AuthError("gone", f"ended the connection in the handshake ({error})") from error


async def _receive(connection: socket.socket, size: int) -> bytes:
    """Exactly so many bytes: what comes after belongs to the channel."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        part = await loop.sock_recv(connection, size - len(data))
        if not part:
            kind = "malformed" if data else "gone"
            raise AuthError(kind, "ended the connection in the handshake")
        data += part
    return data


def _channel_bytes(channel: str) -> bytes:
    """The name as it goes over the wire, padded with zeros."""
    return struct.pack("16s", channel.encode("ascii"))
