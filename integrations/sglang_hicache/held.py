# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Slots that are written but not yet in the index.

SGLang stores the sidecars of a node before its KV. A sidecar's part waits here for the other parts
of its page; last pages (SWA, MAMBA) wait for the path that they belong to. At most half of a pool
waits, or one window of last pages, and nothing longer than `HOLD_S`: then its KV does not come any
more.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from radixshmem import ComponentType, RadixClient, RadixError

from .pages import Keys, SlotIds

__all__ = ["HOLD_S", "Held", "HeldSlots", "recycle"]

HOLD_S = 30.0


@dataclass(slots=True)
class Held:
    """Slots for the blocks `keys`, -1 where the index has one; a FULL page is one block."""

    component: ComponentType
    keys: Keys
    slots: SlotIds
    parts: set[str] = field(default_factory=set)
    """Of a FULL page, those that are written."""
    in_index: bool = False
    """A damaged page that is being written anew: the slot is not ours."""
    since: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> tuple[ComponentType, int]:
        return self.component, int(self.keys[-1])

    @property
    def owned(self) -> SlotIds:
        return self.slots[:0] if self.in_index else self.slots[self.slots >= 0]


class HeldSlots:
    """By component and last key. `guard` is held by whoever uses it."""

    def __init__(self, client: Callable[[], RadixClient | None]) -> None:
        self.guard = threading.RLock()
        self._client = client
        self._held: dict[tuple[ComponentType, int], Held] = {}
        self._count = dict.fromkeys(ComponentType, 0)
        self._server: int | None = None
        self._timer: threading.Timer | None = None

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    def get(self, component: ComponentType, key: int) -> Held | None:
        return self._held.get((component, key))

    def follow(self, client: RadixClient) -> None:
        """Slots of an earlier server are void. After a call that would have told of a new one."""
        store = client.store
        server = store.nonce if store is not None else None
        if server != self._server:
            self._held.clear()
            self._count = dict.fromkeys(ComponentType, 0)
            self._server = server

    def room(self, client: RadixClient, component: ComponentType, least: int = 1) -> int:
        """How many more slots of this pool may wait; of a small pool, `least` in all."""
        slots = client.store.pool(component).num_slots if client.store is not None else 0
        return max(slots // 2, min(slots, least)) - self._count[component]

    def add(self, held: Held) -> None:
        """Take it in; it replaces nothing."""
        self._held[held.name] = held
        self._count[held.component] += len(held.owned)
        if self._timer is None:
            self._start_timer(HOLD_S)

    def take(self, held: Held) -> Held:
        """Out of here, into the index or back to the pool."""
        del self._held[held.name]
        self._count[held.component] -= len(held.owned)
        return held

    def give_back(self, client: RadixClient, held: Held) -> None:
        recycle(client, self.take(held).owned, held.component)

    def clear(self, client: RadixClient) -> None:
        """Give all back."""
        for held in self:
            self.give_back(client, held)

    def close(self) -> None:
        with self.guard:
            if self._timer is not None:
                self._timer.cancel()
            self._held.clear()  # its slots went with the client

    def _start_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        """In the timer's thread."""
        with self.guard:
            self._timer = None
            client = self._client()
            if client is not None:
                with contextlib.suppress(RadixError):
                    self.follow(client)
            now = time.monotonic()
            for held in self:
                if client is not None and now - held.since >= HOLD_S:
                    self.give_back(client, held)
            if self._held:
                oldest = min(held.since for held in self)
                self._start_timer(max(oldest + HOLD_S - now, 1.0))


def recycle(client: RadixClient, slots: SlotIds, component: ComponentType) -> None:
    """Slots that are not needed after all go back to their pool."""
    if slots.size:
        with contextlib.suppress(RadixError, ValueError):  # then they went with their server
            client.recycle_slots(slots, component)
