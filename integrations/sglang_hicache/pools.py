# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What one page is made of: SGLang's host pools, and where their bytes are in a slot.

A FULL slot holds the page of each pool that every page of a prefix needs: the sidecars (draft,
indexer), then the KV, then a tag of 8 bytes. A pool of which only the last pages of a prefix are
needed has slots of its own: SWA or MAMBA, with a tag each.
The tag is the folded key of the page. A page whose tag is another one is damaged: reading it fails,
and the next store writes it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

from radixshmem import ComponentType

__all__ = ["TAG_BYTES", "PagePart", "PageParts", "page_parts"]

TAG_BYTES = 8
_KV = "kv"
_TRAILING = {"swa": ComponentType.SWA, "mamba": ComponentType.MAMBA}
# What SGLang keeps beside the SWA pool, for the same pages.
_SECOND_SWA = (
    "auxiliary_swa",
    "draft_swa",
    "deepseek_v4_c4_state",
    "deepseek_v4_c4_indexer_state",
    "deepseek_v4_c128_state",
)


@dataclass(frozen=True)
class PagePart:
    """The page of one host pool, in a slot from `offset` on."""

    name: str
    pool: Any
    component: ComponentType
    sizes: npt.NDArray[np.uint64]
    """Bytes of the pieces that a page has in the host pool."""
    offset: int
    tag_offset: int
    last: bool
    """Whether the tag follows: the part that is written last and makes the page whole."""

    def addresses(self, host_indices: torch.Tensor, pages: int) -> npt.NDArray[np.uint64]:
        """Of the pieces, uint64 of shape (pages, len(sizes)). ValueError for other indices."""
        if not self.sizes.size:
            return np.empty((pages, 0), np.uint64)
        pointers, _ = self.pool.get_page_buffer_meta(host_indices)
        if len(pointers) != pages * self.sizes.size:
            raise ValueError(
                f"{len(host_indices)} indices of the host pool {self.name} are not {pages} pages"
            )
        return np.array(pointers, np.uint64).reshape(pages, self.sizes.size)


@dataclass(frozen=True)
class PageParts:
    """All parts of a page. The last of `full` is the KV, which may have no bytes of its own."""

    full: tuple[PagePart, ...]
    swa: PagePart | None
    mamba: PagePart | None

    def of(self, name: str) -> PagePart | None:
        """The part of the pool that SGLang calls `name`."""
        for part in (*self.full, self.swa, self.mamba):
            if part is not None and part.name == name:
                return part
        return None

    def slot_bytes(self, component: ComponentType) -> int:
        """Of a slot with its tag; 0 when there is no such pool."""
        part = (self.full[-1], self.swa, self.mamba)[component]
        return part.tag_offset + TAG_BYTES if part is not None else 0


def page_parts(pools: Mapping[str, Any], *, shared_by_ranks: bool) -> PageParts:
    """The parts of host pools by name. ValueError, naming the pool, for what has no slot here.

    `shared_by_ranks`: several ranks have the same KV and one writes it (MLA, with TP).
    """
    second = [name for name in pools if name in _SECOND_SWA]
    if second:
        raise ValueError(
            f"the host pools {', '.join(second)} hold last pages of a prefix as swa does; "
            "radixshmem keeps one such pool: leave the storage backend out for this model"
        )
    sharded = [
        name
        for name, pool in pools.items()
        if name == "mamba" or isinstance(pool, MHATokenToKVPoolHost)
    ]
    if shared_by_ranks and sharded:
        raise ValueError(
            f"the host pools {', '.join(sharded)} differ between TP ranks while the KV is the same "
            "on all, so that one rank writes it: use one TP rank, or leave the storage backend out"
        )
    sidecars = sorted(set(pools) - {_KV, *_TRAILING})
    full = _parts({name: pools[name] for name in (*sidecars, _KV)}, ComponentType.FULL)
    swa, mamba = (
        _parts({name: pools[name]}, component)[0] if name in pools else None
        for name, component in _TRAILING.items()
    )
    return PageParts(tuple(full), swa, mamba)


def _parts(pools: Mapping[str, Any], component: ComponentType) -> list[PagePart]:
    """One after another in a slot, then the tag."""
    sizes = {name: _piece_sizes(name, pool) for name, pool in pools.items()}
    tag_offset = int(sum(each.sum() for each in sizes.values()))
    parts: list[PagePart] = []
    offset = 0
    for name, pool in pools.items():
        last = len(parts) + 1 == len(pools)  # that may be the KV without bytes of its own
        parts.append(PagePart(name, pool, component, sizes[name], offset, tag_offset, last))
        offset += int(sizes[name].sum())
    return parts


def _piece_sizes(name: str, pool: Any) -> npt.NDArray[np.uint64]:
    try:
        meta = pool.get_page_buffer_meta(torch.zeros(pool.page_size, dtype=torch.int64))
    except (ValueError, NotImplementedError) as error:
        layout = getattr(pool, "layout", "?")
        raise ValueError(
            f"the host pool {name} cannot hand out its pages in place ({error}): choose another "
            f"--hicache-mem-layout than {layout}"
        ) from error
    return np.array(meta[1] if meta else [], np.uint64)
