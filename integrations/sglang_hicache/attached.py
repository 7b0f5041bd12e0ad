# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What a backend is once SGLang has named its host pools: parts of pages, and a server for them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sglang.srt.runtime_context import get_server_args

from radixshmem import Geometry, RadixClient

from .connection import Connection
from .full import FullPages
from .held import HeldSlots
from .identity import geometry
from .options import Settings
from .pages import Keys
from .pools import page_parts
from .trailing import TrailingPages

__all__ = ["Attached", "draft_model_expected"]

_log = logging.getLogger("radixshmem.sglang")
_PIPELINE_HINT = (
    "\nPipeline stages with pages of unequal bytes cannot share one server: start a radix-server "
    "for each stage, and give each stage's engine its server_name"
)


class Attached:
    """ValueError for host pools that have no slot here; GeometryMismatch for a server of others."""

    def __init__(self, config: Any, settings: Settings, pools: Mapping[str, Any]) -> None:
        self.parts = page_parts(pools, shared_by_ranks=config.is_mla_model and config.tp_size > 1)
        window = _window_pages(pools)
        self.geometry: Geometry = geometry(config, self.parts, settings, window)
        self.held = HeldSlots(lambda: self.connection.client)
        self.full = FullPages(self.parts.full, self.held)
        self.trailing = {
            part.name: TrailingPages(part, window, self.held)
            for part in (self.parts.swa, self.parts.mamba)
            if part is not None
        }
        hint = _PIPELINE_HINT if config.pp_size > 1 else ""
        self.connection = Connection(settings, self.geometry, hint)

    def settle(self, client: RadixClient, path: Keys, first: int) -> None:
        """The blocks path[first:] are in the index now."""
        for pages in self.trailing.values():
            pages.settle(client, path, first)

    def close(self) -> None:
        self.held.close()
        self.connection.close()


def _window_pages(pools: Mapping[str, Any]) -> int:
    """Pages of the model's sliding window; 0 without one.

    SGLang keeps the window in its tree, which no backend sees, and has it from the model.
    """
    pool = pools.get("swa")
    if pool is None:
        return 0
    from sglang.srt.configs.model_config import ModelConfig

    try:
        window = ModelConfig.from_server_args(get_server_args()).sliding_window_size
    except Exception as error:  # a model of which SGLang knows the window in another way
        _log.debug("radixshmem: no sliding window in the model's configuration: %s", error)
        window = None
    return max(-(-(window or 0) // pool.page_size), 1)


def draft_model_expected(pools: Mapping[str, Any]) -> bool:
    """Whether SGLang will name one more host pool, that of a draft model, after the others."""
    if any(name.startswith("draft") for name in pools):
        return False
    try:
        return bool(getattr(get_server_args(), "speculative_algorithm", None))
    except Exception:  # no arguments were published: a test, not a server
        return False
