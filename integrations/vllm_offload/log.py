# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What operators read: where messages go, and what is told when an engine starts."""

from __future__ import annotations

import logging

from radixshmem import RadixClient

__all__ = ["share_handlers", "tell_size"]

_log = logging.getLogger("radixshmem.vllm")


def share_handlers(ours: logging.Logger, theirs: logging.Logger) -> None:
    """Messages of radixshmem go where vLLM's go, unless the program says where they are to go."""
    if ours.hasHandlers() or ours.level != logging.NOTSET:
        return
    for handler in theirs.handlers:
        ours.addHandler(handler)
    ours.setLevel(theirs.level)


def tell_size(client: RadixClient, block_tokens: int, longest: int) -> None:
    """`longest`: the tokens of the longest request that the engine takes; 0: unknown."""
    blocks = client.mempool_total()
    _log.info(
        "radixshmem: %s holds %d blocks of %d tokens, %d are in use",
        *(client.name, blocks, block_tokens, client.mempool_used()),
    )
    if blocks * block_tokens < longest:
        _log.warning(
            "radixshmem: %s holds %d tokens in all, and one request may have %d: start its "
            "radix-server with more --data-bytes",
            *(client.name, blocks * block_tokens, longest),
        )
