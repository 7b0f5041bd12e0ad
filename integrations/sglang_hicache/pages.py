# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Copies of pages between host pools and slots: one call of the core for each batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from radixshmem import InsertError, RadixError
from radixshmem_core.store import SlotStore

from .pools import TAG_BYTES, PagePart

__all__ = ["Batch", "Keys", "Mask", "SlotIds", "Where", "refuse_unless_ok"]

_DAMAGED = "pages have the tag of another one: they count as missing, and are stored anew"
_TAG_SIZE = np.array([TAG_BYTES], np.uint64)

Keys = npt.NDArray[np.uint64]  # folded
SlotIds = npt.NDArray[np.int32]
Where = npt.NDArray[np.intp]  # positions in a batch
Mask = npt.NDArray[np.bool_]


class Batch:
    """The pages of one call: the keys they have, and where they are in host memory."""

    def __init__(
        self,
        part: PagePart,
        keys: Keys,
        host_indices: torch.Tensor,
        tell: Callable[[str], None],
    ) -> None:
        """`host_indices`: of the tokens in the host pool, int64 of shape (keys x page size,).

        `tell` is told when pages are damaged, as often as they are met.
        ValueError when the indices are not those of as many pages as there are keys.
        """
        self.part = part
        self.keys = keys
        self._tell = tell
        self._addresses = part.addresses(host_indices, len(keys))

    def __len__(self) -> int:
        return len(self.keys)

    def write(self, store: SlotStore, slots: SlotIds, where: Where) -> None:
        """Copy the pages at `where` into slots, the last part with the tag."""
        part, addresses, sizes = self.part, self._addresses[where], self.part.sizes
        tags = self.keys[where]  # alive until the copy has ended
        if part.last:
            addresses, sizes = _with_tags(addresses, sizes, tags)
        store.copy_in(slots, addresses.ravel(), sizes, kind=part.component, offset=part.offset)

    def read(self, store: SlotStore, slots: SlotIds, where: Where) -> Mask:
        """Copy slots into the pages at `where`. Returns: which slots have the page's tag.

        A damaged page may be written anew meanwhile, the tag last: it must be right before, too.
        """
        intact = self.intact(store, slots, where)
        part, addresses, sizes = self.part, self._addresses[where], self.part.sizes
        tags = np.empty(len(slots), np.uint64)
        if part.last:
            addresses, sizes = _with_tags(addresses, sizes, tags)
        store.copy_out(slots, addresses.ravel(), sizes, kind=part.component, offset=part.offset)
        if not part.last:
            return intact & self.intact(store, slots, where)
        intact &= np.equal(tags, self.keys[where])
        return intact

    def intact(self, store: SlotStore, slots: SlotIds, where: Where) -> Mask:
        """Which slots have the tag of the pages at `where`."""
        part = self.part
        tags = np.empty(len(slots), np.uint64)
        addresses = _item_addresses(tags)
        store.copy_out(slots, addresses, _TAG_SIZE, kind=part.component, offset=part.tag_offset)
        ok: Mask = np.equal(tags, self.keys[where])
        if not ok.all():
            self._tell(_DAMAGED)
        return ok


def refuse_unless_ok(status: int, done: str) -> None:
    """RadixError for the status of a query that was refused."""
    if status != InsertError.OK:
        raise RadixError(
            f"pages were not {done}: the index says {InsertError(status).name}; if that is "
            "PINS_FULL, start the radix-server with more --max-pins"
        )


def _with_tags(
    addresses: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64], tags: Keys
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """One piece more for each page: its tag."""
    return (
        np.column_stack((addresses, _item_addresses(tags))),
        np.concatenate((sizes, _TAG_SIZE)),
    )


def _item_addresses(array: Keys) -> npt.NDArray[np.uint64]:
    begin = np.uint64(array.ctypes.data)
    return begin + np.arange(len(array), dtype=np.uint64) * np.uint64(array.itemsize)
