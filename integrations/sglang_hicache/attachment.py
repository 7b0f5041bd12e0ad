# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A backend from its constructor to its end: attached once SGLang has named all its host pools."""

from __future__ import annotations

import logging
import threading
from typing import Any

from radixshmem import RadixError

from .attached import Attached
from .engine import draft_pool_missing
from .options import Settings

__all__ = ["Attachment"]

_log = logging.getLogger("radixshmem.sglang")


class Attachment:
    """Safe to use from several threads. `attached` is None before, and after the end."""

    def __init__(self, config: Any, settings: Settings) -> None:
        self.attached: Attached | None = None
        self.config = config
        self._settings = settings
        self._pools: dict[str, Any] = {}
        self._guard = threading.RLock()
        self._ended = False  # closed, or refused

    def register(self, name: str, pool: Any) -> None:
        """A pool that comes later changes what a page is. Raises as all_registered() does."""
        with self._guard:
            if self._pools.get(name) is pool:
                return
            self._pools[name] = pool
            if self.attached is not None:
                self.attached.close()
                self.attached = None
                self._attach()

    def all_registered(self) -> None:
        """ValueError, GeometryMismatch, RadixError: SGLang then does not attach."""
        if not draft_pool_missing(self._pools):
            self._attach()

    def at_batch(self) -> Attached | None:
        """Where nothing may raise: what cannot be attached is told once, and None from then on."""
        if self.attached is not None or self._ended:
            return self.attached
        with self._guard:
            try:
                return None if self._ended else self._attach()
            except Exception as error:  # an error here would end SGLang's thread
                self._ended = True
                surprise = not isinstance(error, ValueError | RadixError | OSError)
                words = "radixshmem: nothing is restored or stored: %s"
                _log.error(words, error, exc_info=surprise)
                return None

    def close(self) -> None:
        """Idempotent."""
        with self._guard:
            self._ended = True
            attached, self.attached = self.attached, None
            if attached is not None:
                attached.close()

    def _attach(self) -> Attached:
        with self._guard:
            if self.attached is None:
                self.attached = Attached(self.config, self._settings, self._pools)
            return self.attached
