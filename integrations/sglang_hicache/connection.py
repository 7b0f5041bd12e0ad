# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The backend's client of the radix-server, which may start later than the engine.

A client that was once attached follows its server through restarts by itself; until then one
thread tries. Meanwhile everything is a miss.
"""

from __future__ import annotations

import logging
import threading

from radixshmem import Geometry, GeometryMismatch, RadixClient, RadixError, ServerNotReady

from .options import Settings

__all__ = ["Connection"]

_log = logging.getLogger("radixshmem.sglang")
_RETRY_S = 1.0


class Connection:
    """`client` is None until the server is there and has this geometry."""

    def __init__(self, settings: Settings, geometry: Geometry, hint: str = "") -> None:
        """Connects. RadixError for a server without slots; GeometryMismatch for one whose slots
        are others, which is told with the hint."""
        self.client: RadixClient | None = None
        self._settings = settings
        self._geometry = geometry
        self._hint = hint
        self._ended = threading.Event()
        self._guard = threading.Lock()
        self._said = ""
        try:
            self._connect()
        except (ServerNotReady, TimeoutError) as error:
            self._say(error)
            threading.Thread(target=self._try_on, name="radixshmem-connect", daemon=True).start()

    def close(self) -> None:
        """End the client: its pins and slots go. Idempotent."""
        with self._guard:
            self._ended.set()
            client, self.client = self.client, None
        if client is not None:
            client.close()

    def _connect(self) -> None:
        name, endpoint = self._settings.server_name, self._settings.endpoint
        try:
            client = RadixClient(name, self._geometry, endpoint=endpoint)
        except GeometryMismatch as error:
            raise GeometryMismatch(f"{error}{self._hint}") from error
        if client.store is None:
            client.close()
            raise RadixError(
                f"{client.name} is an index-only server and can keep no pages: start one with "
                "--data-bytes, and give its --name as server_name"
            )
        with self._guard:
            if not self._ended.is_set():
                self.client = client
        if self.client is not client:
            client.close()
            return
        _log.info(
            "radixshmem: attached to %s: %d pages of %d tokens, %d in use",
            *(client.name, client.mempool_total(), client.block_size(), client.mempool_used()),
        )

    def _try_on(self) -> None:
        while self.client is None and not self._ended.wait(_RETRY_S):
            try:
                self._connect()
            except Exception as error:  # the thread must live: the next try may succeed
                self._say(error)

    def _say(self, error: Exception) -> None:
        """Once for each reason."""
        if str(error) != self._said:
            self._said = str(error)
            _log.warning("radixshmem: nothing is restored or stored for now: %s", error)
