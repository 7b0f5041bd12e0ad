# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Accepting connections in an event loop.

Not asyncio's server: whoever accepts here knows every connection at once, also those of a moment
before it closes, and has the bare socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import weakref
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Acceptor"]

_log = logging.getLogger("radixshmem.server")

_PAUSE_S = 1.0  # after a connection could not be accepted, e.g. for want of descriptors


class Acceptor:
    """One listening socket, from `start` to `close`."""

    def __init__(
        self,
        what: str,
        accepted: Callable[[socket.socket, Any], None],
        held: Callable[[], Iterable[socket.socket]],
    ) -> None:
        """`accepted(connection, peer address)` owns the connection; `what` names one in the log.

        `held()`: connections that a forked child closes its duplicates of, beside that of the
        listening socket: they would keep address and peers busy after the server has gone.
        """
        self._what = what
        self._accepted = accepted
        self._held = held
        self._socket: socket.socket | None = None
        _all.add(self)

    def start(self, listening: socket.socket) -> None:
        """Take over `listening`, a non-blocking socket that listens."""
        self._socket = listening
        self._resume()

    def close(self) -> None:
        listening, self._socket = self._socket, None
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()

    def _resume(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._accept, self._socket)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, peer = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.warning("cannot accept %s: %s; pausing", self._what, error)
            loop.remove_reader(listening)
            loop.call_later(_PAUSE_S, self._resume)
            return
        self._accepted(connection, peer)

    def drop_in_child(self) -> None:
        for duplicate in (self._socket, *self._held()):
            if duplicate is not None:
                duplicate.close()


_all: weakref.WeakSet[Acceptor] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for acceptor in list(_all):
        acceptor.drop_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
