# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Giving back what dead clients held.

The end of a client's connection, or its exit, is only the trigger to look. A client is dead when
its byte lock is free. Its slots are freed only when its process has completely exited (its pidfd
is readable): until then the process's GPU or NIC may still write into them. One that closed while
it could not get the lock has said that nobody writes them any more. A client whose process
cannot be watched (it never connected to this server, or lives out of sight) has its slots put into
quarantine instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import struct

from . import _core
from .errors import RadixError
from .node import Runner
from .values import ComponentType

__all__ = ["Reaper", "pidfd_of_peer"]

_log = logging.getLogger("radixshmem.server")

_SWEEP_INTERVAL_S = 0.5
_SWEEP_COST_S = 1e-9  # per slot: a look at the client table counts everybody's slots
_MAX_SHARE = 0.01  # of one CPU, for the sweeps that nothing triggered
_SO_PEERPIDFD = 77
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


def pidfd_of_peer(connection: socket.socket) -> int | None:
    """A pidfd of the process at the other end; None when the kernel cannot give one."""
    with contextlib.suppress(OSError):
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
        return int(struct.unpack("i", raw)[0])
    with contextlib.suppress(OSError):
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid = int(_CREDENTIALS.unpack(raw)[0])
        if pid > 0:  # 0: the process lives in a PID namespace that is out of sight
            return os.pidfd_open(pid)
    return None


def has_exited(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


class Reaper:
    """Watches the client table of one index. All methods run in the server's event loop."""

    def __init__(
        self, owner: _core.IndexServer, index: _core.Index, run: Runner, quarantine_s: float
    ) -> None:
        self._owner = owner
        self._index = index
        self._run = run
        self._quarantine_s = quarantine_s
        slots = sum(index.slots_total(kind) for kind in ComponentType)
        self._interval_s = max(_SWEEP_INTERVAL_S, slots * _SWEEP_COST_S / _MAX_SHARE)
        self._pidfds: dict[tuple[int, int], int] = {}
        self._wake = asyncio.Event()
        self.reaped = 0

    async def attached(self, client_id: int, generation: int, peer: socket.socket) -> None:
        """Remember whose process holds this entry. RadixError for an entry that is not live."""
        pidfd = pidfd_of_peer(peer)
        try:
            # Asked after the pidfd was taken: a holder that is alive now is its process.
            for entry in await self._run(self._index.clients):
                if (entry["client"], entry["generation"]) == (client_id, generation):
                    if entry["alive"]:
                        self._remember((client_id, generation), pidfd)
                        _log.debug("client %d is watched", client_id)
                        pidfd = None
                        return
                    break
            raise RadixError(
                f"client {client_id} of generation {generation} is not registered and alive in "
                "this index; attach again"
            )
        finally:
            if pidfd is not None:
                os.close(pidfd)

    def _remember(self, key: tuple[int, int], pidfd: int | None) -> None:
        self._forget(key)
        if pidfd is not None:
            self._pidfds[key] = pidfd
            asyncio.get_running_loop().add_reader(pidfd, self._exited, pidfd)

    def _exited(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)  # it stays readable for ever
        self._wake.set()

    def _forget(self, key: tuple[int, int]) -> None:
        pidfd = self._pidfds.pop(key, None)
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    def look(self) -> None:
        """Something ended: look at the client table soon."""
        self._wake.set()

    async def run(self) -> None:
        """Sweep at each trigger and from time to time, until cancelled."""
        loop = asyncio.get_running_loop()
        next_release = loop.time() + self._quarantine_s
        try:
            while True:
                with contextlib.suppress(asyncio.TimeoutError):
                    timeout_s = min(self._interval_s, self._quarantine_s)
                    await asyncio.wait_for(self._wake.wait(), timeout_s)
                self._wake.clear()
                try:
                    await self.sweep()
                    if loop.time() >= next_release:
                        await self._run(self._owner.release_quarantine)
                        next_release = loop.time() + self._quarantine_s
                except TimeoutError:
                    _log.debug("the index lock is busy; dead clients are reaped at the next sweep")
                except Exception:
                    _log.exception("the reaper met an error; it goes on at the next sweep")
        finally:
            for key in list(self._pidfds):
                self._forget(key)

    async def sweep(self) -> None:
        """Reap every dead client that may be reaped now. TimeoutError: the lock is busy."""
        present: set[tuple[int, int]] = set()
        for entry in await self._run(self._index.clients):
            client_id = entry["client"]
            key = (client_id, entry["generation"])
            present.add(key)
            if client_id == 0 or entry["alive"]:
                continue
            pidfd = self._pidfds.get(key)
            exited = bool(entry["exited"])  # or closed, while it could not get the lock
            if pidfd is not None and not exited and not has_exited(pidfd):
                continue
            exited = exited or pidfd is not None
            pins, slots = await self._run(self._owner.reap, client_id, exited)
            if pins or slots or entry["state"] == 1:
                self.reaped += 1
                _log.info(
                    "client %d (pid %d) died: %d pins cleared, %d slots %s",
                    client_id,
                    entry["pid"],
                    pins,
                    slots,
                    "freed" if exited else "put into quarantine",
                )
        for key in set(self._pidfds) - present:
            self._forget(key)
