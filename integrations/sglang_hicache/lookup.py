# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""How much of a path is there: the KV, and what every other pool needs beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang.srt.mem_cache.hicache_storage import (
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

from radixshmem import COMPONENT_MASK_FULL, RadixClient

from .attached import Attached
from .pages import Keys

__all__ = ["Lookup"]


@dataclass(slots=True)
class Lookup:
    """Of the pages of `path` from `first` on. Calls raise RadixError, as queries do."""

    client: RadixClient
    path: Keys
    first: int
    local_only: bool
    """Whether peers are not asked."""

    def hit(self, mask: int = COMPONENT_MASK_FULL) -> int:
        """How many of the leading pages are there, with their last ones in the pools of `mask`."""
        found = self.client.query(self.path, mask, local_only=self.local_only)
        return max(found.common_hit - self.first, 0)

    def restorable(
        self, attached: Attached, transfers: Sequence[PoolTransfer], tell: Callable[[str], None]
    ) -> PoolTransferResult:
        """Which numbers of leading pages have what each of these pools needs for them."""
        pages = self.hit()
        if not pages:
            return PoolTransferResult(0, {}, [])
        mask = attached.mask(transfer.name for transfer in transfers)
        deepest = self.hit(mask) if mask != COMPONENT_MASK_FULL else pages
        hits: dict[str, int] = {PoolName.KV: pages}
        restorable = set(range(1, pages + 1))
        for transfer in transfers:
            lengths = self._lengths(attached, transfer, pages, deepest, tell)
            if lengths:
                hits[transfer.name] = max(lengths)
            restorable &= lengths
        return PoolTransferResult(max(restorable, default=0), hits, sorted(restorable))

    def _lengths(
        self,
        attached: Attached,
        transfer: PoolTransfer,
        pages: int,
        deepest: int,
        tell: Callable[[str], None],
    ) -> set[int]:
        """Up to `pages`; on peers only one is known, `deepest`, or none when that is 0."""
        part = attached.parts.of(transfer.name)
        if part is None:
            return set()
        trailing = attached.trailing.get(part.name)
        if trailing is None and transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
            return set(range(1, pages + 1))  # the sidecar is in the slots of the KV
        if trailing is not None and transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
            needed = max(1, len(transfer.keys or ()))
            ok = trailing.restorable(self.client, self.path, self.first, pages, needed)
            if 0 < deepest <= pages and needed <= trailing.window:
                ok[deepest - 1] = True
            return set((ok.nonzero()[0] + 1).tolist())
        tell(f"the host pool {part.name} with hit policy {transfer.hit_policy} is not kept")
        return set()
