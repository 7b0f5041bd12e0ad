# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""How vLLM's scheduler asks a manager what is cached: the calls, their order and what ends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from e2e.vllm_offload.slot_bytes import BLOCK_TOKENS, FULL, MAMBA, WINDOW
from vllm.v1.kv_offload.base import LookupResult

from radixshmem import ComponentType

Ask = Callable[[int, int], LookupResult]  # group, block


def hit_blocks(
    kinds: Sequence[ComponentType], ask: Ask, tokens: int, hashed: int, local: int
) -> int | None:
    """Blocks from `local` on that can be loaded; None: ask again later.

    Groups of full attention first, ascending until a miss. Then the windows, descending, one
    token short of the request; one that shrinks the hit makes the others be asked again.
    """
    full = [i for i, kind in enumerate(kinds) if kind == FULL]
    windows = [i for i, kind in enumerate(kinds) if kind != FULL]
    limit = tokens
    if windows:
        limit -= 1
        if MAMBA in kinds:
            limit -= limit % BLOCK_TOKENS
    end = min(-(-limit // BLOCK_TOKENS), hashed)
    if min(limit, hashed * BLOCK_TOKENS) - local * BLOCK_TOKENS < BLOCK_TOKENS:
        return 0
    wait = False
    for group in full:
        end, waits = _prefix(ask, group, local, end)
        wait |= waits
        if end == local:
            return 0
    again = bool(windows)
    while again:
        again = False
        for group in windows:
            size = 1 if kinds[group] == MAMBA else WINDOW
            found, waits = _window(ask, group, local, end, size)
            wait |= waits
            if not waits:
                again |= found < end and len(windows) > 1
                end = found
            if end == local:
                return 0
    return None if wait else end - local


def _prefix(ask: Ask, group: int, begin: int, end: int) -> tuple[int, bool]:
    wait = False
    for block in range(begin, end):
        answer = ask(group, block)
        if answer is LookupResult.MISS:
            return block, wait
        wait |= answer is not LookupResult.HIT
    return end, wait


def _window(ask: Ask, group: int, begin: int, end: int, size: int) -> tuple[int, bool]:
    """The end of the last complete window; what is left of `begin` is in vLLM's own cache."""
    run, pending, wait = 0, False, False
    for block in range(end - 1, begin - 1, -1):
        answer = ask(group, block)
        wait |= answer is LookupResult.RETRY
        if answer in (LookupResult.HIT, LookupResult.HIT_PENDING):
            run += 1
            pending |= answer is LookupResult.HIT_PENDING
        else:
            run, pending = 0, False
        if run == size:
            return block + size, wait or pending
    return begin + run, wait or pending
