# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the listening and the dialing end set on their TCP sockets."""

from __future__ import annotations

import socket

__all__ = ["socket_address", "tune"]

# A connection whose peer has vanished ends within about 9 s when idle and 4 s when in use; one that
# outlives a short partition has a retransmission timer short enough to go on at once.
_IDLE_S = 5
_PROBE_S = 2
_PROBES = 2
_UNACKNOWLEDGED_MS = 4000


def tune(connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)


def socket_address(address: str, port: int) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    """Family and socket address of a numeric IPv4 or IPv6 address. OSError for anything else."""
    found = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    )
    return found[0][0], found[0][4]
