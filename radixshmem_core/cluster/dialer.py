# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Authenticated connections to peers."""

from __future__ import annotations

import asyncio
import socket
import time

from ..errors import RadixError
from .auth import AuthError, greet_listener
from .streams import socket_address, tune

__all__ = ["PeerUnreachable", "dial"]


class PeerUnreachable(RadixError):
    """No connection to the peer within the time."""


async def dial(
    address: str, port: int, channel: str, token: bytes, timeout_s: float
) -> socket.socket:
    """A connected, authenticated, non-blocking socket that carries `channel`.

    PeerUnreachable if nobody answers in time, AuthError if the one who answers is not a peer.
    """
    deadline = time.monotonic() + timeout_s
    try:
        family, target = socket_address(address, port)
        connection = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, OverflowError) as error:
        raise PeerUnreachable(f"{address}:{port} cannot be reached ({error})") from error
    try:
        tune(connection)
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.sock_connect(connection, target), timeout_s)
        left = max(0.001, deadline - time.monotonic())
        await greet_listener(connection, token, channel, left)
    except asyncio.TimeoutError:
        connection.close()
        raise PeerUnreachable(
            f"{address}:{port} did not accept a connection within {timeout_s:g} s"
        ) from None
    except OSError as error:
        connection.close()
        raise PeerUnreachable(f"{address}:{port} cannot be reached ({error})") from error
    except AuthError as error:
        connection.close()
        raise AuthError(error.kind, f"the peer at {address}:{port} {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection
