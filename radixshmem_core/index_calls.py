# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The index calls of a client: a thin skin over `_core.Index`.

The usual call passes straight through. Only when the core refuses an argument, the call is prepared
anew and tried once more.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._core import AuxResult, Cursor, InsertResult, QueryResult
from .arrays import as_count, as_hashes, as_int, as_slots
from .errors import RadixError
from .messages import Flush, FlushReply, Hello, Reply, Request, Reset
from .values import COMPONENT_MASK_FULL, ComponentType

if TYPE_CHECKING:
    from .cluster.connections import Connections
    from .store import SlotStore

__all__ = ["Attachment", "IndexCalls", "Refusing", "Seen"]

_FULL = int(ComponentType.FULL)  # an enum would be converted anew in every call
_RESET_TIMEOUT_S = 30.0
_ANSWER_S = 5.0  # beyond the deadline of a request, for the answer to come
_REFUSED = (ValueError, TypeError, RadixError)


class Refusing:
    """Stands where an index would be; every use of it raises the same error."""

    def __init__(self, kind: type[Exception], message: str) -> None:
        self._kind = kind
        self._message = message

    def __getattr__(self, name: str) -> Any:
        raise self._kind(self._message)


class Attachment:
    """What a client is attached to now: one life of a server's index, its slots, and its peers."""

    __slots__ = ("connections", "index", "store")

    def __init__(
        self,
        index: _core.Index,
        store: SlotStore | None,
        connections: Connections | None = None,
    ) -> None:
        self.index = index
        self.store = store
        self.connections = connections  # None without a cluster


class Seen(threading.local):
    """The attachment that the calling thread knows of.

    Slot ids do not tell which server they are of. So a thread goes on to a new server only after
    one of its calls has raised ServerNotReady: what it holds of the old one is void.
    """

    def __init__(self, now: Attachment) -> None:
        """Runs in each thread, at its first use."""
        self._now = now
        self.take()

    def take(self) -> None:
        """From here on the calling thread means the present attachment."""
        self.index = self._now.index
        self.store = self._now.store
        connections = self._now.connections
        self.peers = None if connections is None else connections.peers


class IndexCalls:
    """Queries, inserts and slots, on the index that the calling thread has seen."""

    _seen: Seen

    @property
    def _index(self) -> _core.Index:
        return self._seen.index

    def _attached_anew(self, failed: _core.Index, error: RadixError) -> _core.Index:
        """The first index in the place of none, or an error that says what has ended."""
        raise NotImplementedError

    def _ask_server(self, request: Request, timeout_s: float) -> Reply:
        """One request on the control socket."""
        raise NotImplementedError

    def _tell_server(self, request: Request) -> None:
        """The same, without waiting for the reply."""
        raise NotImplementedError

    def _again(self, index: _core.Index, error: Exception) -> _core.Index:
        """The index for a second try."""
        if isinstance(error, RadixError):
            return self._attached_anew(index, error)
        try:
            index.total_blocks()  # the arguments are looked at first, whatever became of the index
        except RadixError as gone:
            return self._attached_anew(index, gone)
        return index

    def _ask(self, question: Callable[[_core.Index], int]) -> int:
        index = self._seen.index
        try:
            return question(index)
        except RadixError as error:
            return question(self._again(index, error))

    # ------------------------------------------------------------ queries

    def query(
        self,
        hashes: Any,
        mask: int = COMPONENT_MASK_FULL,
        *,
        local_only: bool = False,
        lock: bool = False,
        update_meta: bool = True,
    ) -> QueryResult:
        """The longest cached prefix of `hashes`; with `lock`, its local part is pinned until
        `finalize()`."""
        seen = self._seen
        index = seen.index
        try:
            if seen.peers is None or local_only:
                return index.query(hashes, mask, True, lock, update_meta)
            return seen.peers.query(hashes, mask, lock, update_meta)
        except _REFUSED as error:
            index = self._again(index, error)
            peers = None if local_only else self._seen.peers
            words, bits = as_hashes(hashes), as_int(mask)
            if peers is None:
                return index.query(words, bits, True, bool(lock), bool(update_meta))
            return peers.query(words, bits, bool(lock), bool(update_meta))

    def query_aux(
        self,
        hashes: Any,
        component: int,
        start: int = 0,
        *,
        lock: bool = False,
        update_meta: bool = True,
    ) -> AuxResult:
        """The cached prefix, and the SWA or MAMBA slot of each block in it from `start` on."""
        index = self._seen.index
        try:
            return index.query_aux(hashes, component, start, lock, update_meta)
        except _REFUSED as error:
            return self._again(index, error).query_aux(
                as_hashes(hashes),
                as_int(component),
                as_count(start, "start"),
                bool(lock),
                bool(update_meta),
            )

    def extend(
        self,
        cursor: Cursor,
        more_hashes: Any,
        mask: int = COMPONENT_MASK_FULL,
        *,
        local_only: bool = False,
        lock: bool = False,
        update_meta: bool = True,
    ) -> QueryResult:
        """Go on from where an earlier match ended. CURSOR_STALE: query again from the start."""
        index = self._seen.index
        try:
            return index.extend(cursor, more_hashes, mask, local_only, lock, update_meta)
        except _REFUSED as error:
            return self._again(index, error).extend(
                cursor,
                as_hashes(more_hashes),
                as_int(mask),
                bool(local_only),
                bool(lock),
                bool(update_meta),
            )

    def query_many(
        self,
        hashes_list: Iterable[Any],
        mask: int = COMPONENT_MASK_FULL,
        *,
        local_only: bool = False,
        lock: bool = False,
        update_meta: bool = True,
    ) -> list[QueryResult]:
        """One `query` for each item."""
        return [
            self.query(hashes, mask, local_only=local_only, lock=lock, update_meta=update_meta)
            for hashes in hashes_list
        ]

    # ------------------------------------------------------------ changes

    def insert(
        self,
        hashes: Any,
        slots: Any,
        start: int = 0,
        auto_recycle: bool = True,
        *,
        component: int = _FULL,
    ) -> InsertResult:
        """Publish `slots` as the blocks hashes[start:]. See docs/api.md for each component."""
        index = self._seen.index
        try:
            return index.insert(hashes, slots, start, auto_recycle, component)
        except _REFUSED as error:
            return self._again(index, error).insert(
                as_hashes(hashes),
                as_slots(slots),
                as_count(start, "start"),
                bool(auto_recycle),
                as_int(component),
            )

    def insert_many(
        self, items: Iterable[Sequence[Any]], *, component: int = _FULL
    ) -> list[InsertResult]:
        """One `insert` for each (hashes, slots, start); the lock is free between them."""
        return [
            self.insert(hashes, slots, *start, component=component)
            for hashes, slots, *start in items
        ]

    def allocate_slots(self, n: int, component: int = _FULL) -> npt.NDArray[np.int32]:
        """Up to `n` slots for this client's group; evicts unpinned blocks as needed."""
        index = self._seen.index
        try:
            return index.allocate_slots(n, component)
        except _REFUSED as error:
            return self._again(index, error).allocate_slots(
                as_count(n, "the number of slots"), as_int(component)
            )

    def recycle_slots(self, slots: Any, component: int = _FULL) -> None:
        """Give allocated slots back. ValueError, and nothing given back, if one is not ours."""
        index = self._seen.index
        try:
            index.recycle_slots(slots, component)
        except _REFUSED as error:
            self._again(index, error).recycle_slots(as_slots(slots), as_int(component))

    def reset(self, cluster: bool = False) -> None:
        """Drop the whole tree; pinned bytes stay until finalized. TimeoutError: try again.

        `cluster=True` drops the tree of every node of this fingerprint, through the server.
        """
        if cluster:
            self._ask_server(Hello(), _ANSWER_S)  # a server that stands still is told of sooner
            self._ask_server(Reset(), _RESET_TIMEOUT_S)
            return
        index = self._seen.index
        try:
            index.reset()
        except RadixError as error:
            self._again(index, error).reset()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Make all inserts visible to peers: True once all shard holders have acknowledged.

        False at the deadline; 0 only asks for it, and waits for nothing. True at once without a
        cluster.
        """
        seen = self._seen
        _ = seen.index.usable  # raises for a client that was closed
        if seen.peers is None:
            return True
        if timeout_s <= 0:
            with contextlib.suppress(RadixError):  # away, or too busy: they are published later
                self._tell_server(Flush(timeout_s=0.0))
            return False
        reply = self._ask_server(Flush(timeout_s=timeout_s), timeout_s + _ANSWER_S)
        return isinstance(reply, FlushReply) and reply.complete

    # ------------------------------------------------------------ figures

    def mempool_total(self) -> int:
        """Slots of the FULL pool."""
        return self._ask(lambda index: index.slots_total(ComponentType.FULL))

    def mempool_free(self) -> int:
        """Slots of the FULL pool that are neither cached nor held by anybody."""
        return self._ask(lambda index: index.slots_free(ComponentType.FULL))

    def mempool_used(self) -> int:
        """Slots of the FULL pool that hold a block or belong to a client."""
        return self.mempool_total() - self.mempool_free()

    def swa_mempool_total(self) -> int:
        """Slots of the SWA pool; 0 when the geometry has none."""
        return self._ask(lambda index: index.slots_total(ComponentType.SWA))

    def total_blocks(self) -> int:
        """Blocks in the tree."""
        return self._ask(lambda index: index.total_blocks())

    def total_radix_nodes(self) -> int:
        """Segments in the tree."""
        return self._ask(lambda index: index.total_radix_nodes())
