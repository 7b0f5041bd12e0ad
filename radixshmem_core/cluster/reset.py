# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A cluster reset: trees of an earlier epoch are dropped, here and by every peer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from .. import _core
from ..errors import RadixError
from ..node import Runner
from . import wire
from .peers import Peer, Peers

__all__ = ["ask_to_drop", "drop_outdated"]

_log = logging.getLogger("radixshmem.server")

_ASK_TIMEOUT_S = 2.0
_CONFIRM_S = 10.0  # longer than the lease of a member that died
_RETRY_S = 0.5


async def drop_outdated(
    index: _core.Index, own: tuple[int, int], run: Runner, wanted: Callable[[], bool]
) -> bool:
    """Drop the tree unless it is of this digest, and note that it is now; `own`: rank and digest.

    False: the index goes meanwhile, and is not `wanted` any more.
    """
    rank, digest = own
    table = _core.PeerTable(index)
    if table.own_digest() not in (0, digest):
        _log.info("rank %d: dropping the tree of before a reset", rank)
        while wanted():
            try:
                await run(index.reset)
                break
            except TimeoutError as error:  # a stopped process holds the lock
                _log.warning("rank %d: cannot drop the tree yet: %s", rank, error)
                await asyncio.sleep(_RETRY_S)
    if wanted():
        table.set_own(rank, digest, False)
        return True
    return False


async def ask_to_drop(peers: Peers, request: wire.EpochRaised) -> None:
    """Wait until every peer has dropped its tree. RadixError naming those that were too late."""
    asked = list(peers)
    confirmed = await asyncio.gather(*(_confirmed(peers, peer, request) for peer in asked))
    silent = [peer.name for peer, done in zip(asked, confirmed, strict=True) if not done]
    if silent:
        raise RadixError(
            f"the cache is reset (epoch {request.epoch}), but {', '.join(silent)} did not confirm "
            f"it within {_CONFIRM_S:g} s: until a node confirms, its own clients may find older "
            "blocks there; look at `radix-server nodes`, and reset again"
        )


async def _confirmed(peers: Peers, peer: Peer, request: wire.EpochRaised) -> bool:
    """Whether the peer has dropped its tree, or is no member any more."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _CONFIRM_S
    while peer in peers:
        left = deadline - loop.time()
        if left <= 0:
            return False
        try:
            await peer.link.ask(request, min(left, _ASK_TIMEOUT_S))
            return True
        except RadixError as error:
            _log.info("%s has not reset its cache yet: %s", peer.name, error)
            await asyncio.sleep(_RETRY_S)
    return True
