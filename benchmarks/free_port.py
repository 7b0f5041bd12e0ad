# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Ports for servers that take one by number, and bind it some time later."""

from __future__ import annotations

import contextlib
import random
import socket

__all__ = ["free_port"]

_PORTS = range(20000, 32000)


def free_port() -> int:
    """Of loopback; none that the system gives to connections meanwhile."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
