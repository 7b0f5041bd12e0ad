# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What SGLang tells no backend, and what it leaves for later, when it is too late."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import sglang
from sglang.srt import runtime_context
from sglang.srt.mem_cache import utils

__all__ = ["argument", "draft_pool_missing", "prepare_keys", "window_pages"]

_log = logging.getLogger("radixshmem.sglang")


def argument(name: str) -> Any:
    """Of the command line; None where SGLang runs without one, as in a test."""
    return getattr(_arguments(), name, None)


def draft_pool_missing(pools: Iterable[str]) -> bool:
    """Whether SGLang will name one more host pool, that of a draft model, after the others."""
    return bool(argument("speculative_algorithm")) and not any(
        name.startswith("draft") for name in pools
    )


def prepare_keys() -> None:
    """Have SGLang compile the hash of its page keys, which it would do at the first request, in a
    thread that a flush waits for, and then gives up.

    ValueError for an SGLang whose keys are of tokens alone, which a backend cannot see;
    RuntimeError where the hash cannot be compiled.
    """
    if not hasattr(utils, "get_storage_hash_str"):
        raise ValueError(
            f"SGLang {sglang.__version__} leaves cache_salt, extra_key and LoRA out of the keys of "
            "its pages, so that requests would get pages of others: use SGLang 0.5.20 or later"
        )
    try:
        utils.get_storage_hash_str([0], page_size=1)
    except RuntimeError as error:
        why = error.__cause__ or error
        todo = "install g++, ninja and OpenSSL's headers (libssl-dev) where the engine runs"
        if isinstance(why, OSError) and not isinstance(why, FileNotFoundError):
            todo = "have TORCH_EXTENSIONS_DIR name a folder that the engine can write to"
        raise RuntimeError(
            f"SGLang cannot compile the hash of its page keys ({why}): {todo}"
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
