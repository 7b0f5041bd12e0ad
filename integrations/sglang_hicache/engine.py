# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What SGLang tells no backend, and what it leaves for later, when it is too late."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from sglang.srt import runtime_context
from sglang.srt.mem_cache.utils import get_storage_hash_str

__all__ = ["argument", "compile_hash", "draft_pool_missing", "window_pages"]

_log = logging.getLogger("radixshmem.sglang")


def argument(name: str) -> Any:
    """Of the command line; None where SGLang runs without one, as in a test."""
    return getattr(_arguments(), name, None)


def draft_pool_missing(pools: Iterable[str]) -> bool:
    """Whether SGLang will name one more host pool, that of a draft model, after the others."""
    return bool(argument("speculative_algorithm")) and not any(
        name.startswith("draft") for name in pools
    )


def compile_hash() -> None:
    """RuntimeError where SGLang cannot compile the hash of its keys.

    It would do so at the first request, in a thread that a flush waits for, and then gives up.
    """
    try:
        get_storage_hash_str([0], page_size=1)
    except RuntimeError as error:
        raise RuntimeError(
            f"SGLang cannot compile the hash of its page keys ({error.__cause__ or error}): "
            "install g++, ninja and OpenSSL's headers (libssl-dev) where the engine runs"
        ) from error


def window_pages(page_size: int) -> int:
    """Pages of the model's sliding window, at least 1.

    SGLang keeps the window in its tree, and has it from the model.
    """
    from sglang.srt.configs.model_config import ModelConfig

    window = None
    try:
        window = ModelConfig.from_server_args(_arguments()).sliding_window_size
    except Exception as error:  # whatever SGLang raises for what it was not started with
        _log.debug("radixshmem: no sliding window in the model's configuration: %s", error)
    return max(-(-int(window or 0) // page_size), 1)


def _arguments() -> Any:
    try:
        return runtime_context.get_server_args()
    except Exception:  # not published
        return None
