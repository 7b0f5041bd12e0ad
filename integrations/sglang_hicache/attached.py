# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What a backend is once SGLang has named its host pools: parts of pages, and a server for them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from radixshmem import COMPONENT_MASK_FULL, RadixClient

from .connection import Connection
from .engine import window_pages
from .full import FullPages
from .held import HeldSlots
from .identity import geometry
from .options import Settings
from .pages import Keys
from .pools import page_parts
from .trailing import TrailingPages

__all__ = ["Attached"]

_PIPELINE_HINT = (
    "\nPipeline stages with pages of unequal bytes cannot share one server: start a radix-server "
    "for each stage, and give each stage's engine its server_name"
)


class Attached:
    """ValueError for host pools that have no slot here; GeometryMismatch for a server of others."""

    def __init__(self, config: Any, settings: Settings, pools: Mapping[str, Any]) -> None:
        self.parts = page_parts(pools, shared_by_ranks=config.is_mla_model and config.tp_size > 1)
        window = window_pages(self.parts.swa.pool.page_size) if self.parts.swa is not None else 0
        self.held = HeldSlots(lambda: self.connection.client)
        self.full = FullPages(self.parts.full, self.held)
        self.trailing = {
            part.name: TrailingPages(part, window, self.held)
            for part in (self.parts.swa, self.parts.mamba)
            if part is not None
        }
        slots = geometry(config, self.parts, settings, window)
        hint = _PIPELINE_HINT if config.pp_size > 1 else ""
        self.connection = Connection(settings, slots, hint)

    def mask(self, pools: Iterable[str]) -> int:
        """For queries of FULL blocks with the last pages of those of these pools that have them."""
        masks = (self.trailing[name].mask for name in pools if name in self.trailing)
        return functools.reduce(operator.or_, masks, COMPONENT_MASK_FULL)

    def settle(self, client: RadixClient, path: Keys, first: int) -> None:
        """The blocks path[first:] are in the index now."""
        for pages in self.trailing.values():
            pages.settle(client, path, first)

    def clear(self, client: RadixClient) -> None:
        """Drop the trees of all nodes of this fingerprint, and what waits here for its path."""
        with self.held.guard:
            self.held.follow(client)
            self.held.clear(client)
            client.reset(cluster=True)

    def close(self) -> None:
        """Not while a store writes: its slots would be another's as soon as the client ends."""
        with self.held.guard:
            self.connection.close()
            self.held.close()
