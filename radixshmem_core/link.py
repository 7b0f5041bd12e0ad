# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The connection that a client keeps to its server, and the thread that restores it.

Calls do not need it: it only tells the server, by its end, that the client may have died. One
daemon thread per process watches the connections of all clients; when a server goes away it calls
the client's `reconnect` until that succeeds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable

from .errors import GeometryMismatch

__all__ = ["Link"]

_log = logging.getLogger("radixshmem.client")

_FIRST_RETRY_S = 0.02
_LAST_RETRY_S = 0.5


class Link:
    """One kept connection. `reconnect()` returns a new one, or raises to be called again later.

    It is given as a weak method, so that a link never keeps its client alive.
    """

    def __init__(self, reconnect: weakref.WeakMethod[Callable[[], socket.socket]]) -> None:
        self._reconnect = reconnect
        self._socket: socket.socket | None = None
        self._retry_at = 0.0
        self._retry_s = _FIRST_RETRY_S
        self._guard = threading.RLock()  # as in _Watcher
        self._closed = False
        self._said = ""

    def keep(self, connection: socket.socket) -> None:
        """Hold `connection` and watch it; replaces an earlier one."""
        with self._guard:
            if self._closed:
                connection.close()
                return
            if self._socket is not None:
                self._socket.close()
            self._socket = connection
            self._retry_s = _FIRST_RETRY_S
            self._said = ""
        _watcher().watch(self)

    def close(self) -> None:
        """End the connection and the watch. Idempotent."""
        with self._guard:
            self._closed = True
            connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()
        watcher = _Watcher.current
        if watcher is not None:
            watcher.forget(self)

    # ------------------------------------------------------------ called by the watcher

    def descriptor(self) -> int:
        """The descriptor to watch; -1 while there is no connection."""
        with self._guard:
            return -1 if self._socket is None else self._socket.fileno()

    def lost(self) -> None:
        with self._guard:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
                self._retry_at = time.monotonic()

    def due_in(self, now: float) -> float:
        return max(0.0, self._retry_at - now)

    def retry(self) -> None:
        """Try once to get a connection back."""
        reconnect = self._reconnect()
        if reconnect is None or self._closed:
            self.close()
            return
        try:
            self.keep(reconnect())
        except Exception as error:
            self._say(error)
            self._retry_at = time.monotonic() + self._retry_s
            self._retry_s = min(_LAST_RETRY_S, self._retry_s * 2)

    def _say(self, error: Exception) -> None:
        """A refused geometry is a warning, once: no call of the client tells of it."""
        refused = isinstance(error, GeometryMismatch | ValueError) and str(error) != self._said
        if refused:
            self._said = str(error)
        _log.log(
            logging.WARNING if refused else logging.DEBUG,
            "cannot attach to the radix-server anew: %s",
            error,
        )

    def drop_in_child(self) -> None:
        if self._socket is not None:
            self._socket.close()  # closes the child's duplicate only
        self._closed = True


class _Watcher:
    """The thread. It sleeps in poll() while all connections are well."""

    current: _Watcher | None = None

    def __init__(self) -> None:
        self._links: set[Link] = set()
        self._guard = threading.RLock()  # the garbage collector may close clients inside
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        threading.Thread(target=self._loop, name="radixshmem links", daemon=True).start()

    def watch(self, link: Link) -> None:
        with self._guard:
            self._links.add(link)
        self._wake()

    def forget(self, link: Link) -> None:
        with self._guard:
            self._links.discard(link)
        self._wake()

    def links(self) -> list[Link]:
        with self._guard:
            return list(self._links)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it is awake already
            os.write(self._wake_write, b"x")

    def _loop(self) -> None:
        while True:
            poll = select.poll()
            poll.register(self._wake_read, select.POLLIN)
            watched: dict[int, Link] = {}
            broken: list[Link] = []
            for link in self.links():
                descriptor = link.descriptor()
                if descriptor < 0:
                    broken.append(link)
                else:
                    watched[descriptor] = link
                    poll.register(descriptor, select.POLLRDHUP | select.POLLIN)
            now = time.monotonic()
            timeout = min((link.due_in(now) for link in broken), default=None)
            for descriptor, event in poll.poll(None if timeout is None else timeout * 1000):
                if descriptor == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                elif not event & select.POLLNVAL:  # closed meanwhile by its client
                    watched[descriptor].lost()
            now = time.monotonic()
            for link in broken:
                if link.due_in(now) <= 0:
                    link.retry()


_creation = threading.Lock()


def _watcher() -> _Watcher:
    with _creation:
        if _Watcher.current is None:
            _Watcher.current = _Watcher()
        return _Watcher.current


def _after_fork_in_child() -> None:
    global _creation
    _creation = threading.Lock()
    inherited, _Watcher.current = _Watcher.current, None
    if inherited is not None:
        for link in list(inherited._links):
            link.drop_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
