# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`RadixClient`: one engine process's way into the cache of its node.

Index calls run in shared memory (see index_calls). The server is asked only to configure, for its
state, and to watch over this client's life. When a server is replaced, the client attaches to the
new one by itself, provided that the geometry is the same.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from . import _core
from ._core import InsertResult, QueryResult
from .arrays import as_hashes
from .config import check_name, check_text
from .errors import GeometryMismatch, RadixError, ServerNotReady
from .identity import Identity
from .index_calls import Attachment, IndexCalls, Refusing, Seen
from .link import Link
from .messages import (
    Attached,
    Configure,
    Hello,
    Info,
    PullDone,
    Reply,
    Request,
    WaitReady,
)
from .pull import OpenJobs, PullJob
from .pull_channel import PullChannel
from .rpc import LONGEST_S, ask, ask_info, ask_patiently, connect, exchange, socket_path, tell
from .store import SlotStore
from .values import COMPONENT_MASK_FULL, ComponentType, Geometry

if TYPE_CHECKING:
    from .cluster.connections import Connections

__all__ = ["InsertResult", "QueryResult", "RadixClient"]

_ASK_TIMEOUT_S = 5.0
_STORE_TIMEOUT_MS = 5000
_POLL_S = 0.02

_T = TypeVar("_T")
_clients: weakref.WeakSet[RadixClient] = weakref.WeakSet()


class RadixClient(IndexCalls):
    """A client of one server. Safe to use from several threads; not usable after a fork."""

    def __init__(
        self,
        name: str,
        geometry: Geometry | Mapping[str, Any] | None = None,
        *,
        endpoint: str | None = None,
        max_outstanding: int = 256,
        read_only: bool = False,
        group: str = "",
    ) -> None:
        """Connects. ServerNotReady at once when no server of this name answers."""
        check_name("name", name)
        check_text("group", group)
        if max_outstanding < 1:
            raise ValueError(f"max_outstanding is {max_outstanding}; it must be at least 1")
        self._pid = os.getpid()
        self._closed = False
        self._name = name
        self._group = group
        self._read_only = read_only
        self._path = socket_path(endpoint or "", name)
        self._wanted: Geometry | None = None
        self._identity: Identity | None = None
        self._attaching = threading.RLock()
        self._open_jobs = OpenJobs(max_outstanding)
        self._link = Link(weakref.WeakMethod(self._reconnect))
        self._pulls = PullChannel(self._path, self._local_answer, self._pull_ended)
        self._refuse(ServerNotReady, self._no_geometry())
        self.transfer_failures = 0
        self.staging_shortfalls = 0
        self.promotion_shortfalls = 0
        self.saturated = 0
        self._info = ask_info(self._path, Hello(), _ASK_TIMEOUT_S)
        _clients.add(self)
        try:
            if geometry is not None:
                self.configure(geometry)
            elif self._info.mode == "ready":
                self._attach()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------ life

    def configure(self, geometry: Geometry | Mapping[str, Any]) -> Info:
        """Give the server its geometry, or check that it has the same, and attach.

        Waits until its memory is reserved. TimeoutError when it is stopped meanwhile.
        """
        self._check_usable()
        if not isinstance(geometry, Geometry):
            geometry = Geometry.from_dict(geometry)
        request = Configure(geometry=geometry.to_dict())
        self._info = ask_patiently(self._path, request, _ASK_TIMEOUT_S, self._check_usable)
        self._wanted = geometry
        self._attach()
        return self._info

    def wait_ready(self, timeout_s: float) -> Info:
        """The state once the server is ready and this client attached. TimeoutError, RadixError."""
        deadline = time.monotonic() + timeout_s
        state = "no server answers"
        while True:
            self._check_usable()
            left = max(0.0, deadline - time.monotonic())
            try:
                self._info = ask_info(
                    self._path, WaitReady(timeout_s=min(left, _ASK_TIMEOUT_S)), left + 1.0
                )
                state = f"the server is {self._info.mode!r}"
                if self._info.mode == "waiting":
                    state += " for some client to give it a geometry"
                if self._info.last_error:
                    state += f" ({self._info.last_error})"
                if self._info.mode == "failed":
                    raise RadixError(f"{self._name} failed: {self._info.last_error}")
                if self._info.mode == "ready":
                    self._attach()
                    return self._info
            except ServerNotReady:
                time.sleep(min(_POLL_S, left))
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{self._name} is not ready after {timeout_s:g} s: {state}")

    def status(self) -> Info:
        """Ask the server for its state."""
        self._check_usable()
        self._info = ask_info(self._path, Hello(), _ASK_TIMEOUT_S)
        return self._info

    def close(self) -> None:
        """Clear this client's pins, give its slots back, unmap. Idempotent."""
        if self._pid != os.getpid():
            return  # inherited by a forked child: everything belongs to the parent
        with self._attaching:
            if self._closed:
                return
            self._closed = True
            _clients.discard(self)
            now = self._now
            self._refuse(RadixError, f"this client of {self._name} was closed; make a new one")
            self._link.close()
            self._pulls.close()
            _end(now.index, now.store, now.connections)

    def __enter__(self) -> RadixClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # a constructor that failed, an interpreter that ends
            self.close()

    def _no_geometry(self) -> str:
        return f"{self._name} has no geometry yet; call configure or wait_ready"

    def _refuse(self, kind: type[Exception], message: str) -> None:
        self._now = Attachment(cast("_core.Index", Refusing(kind, message)), None)
        self._seen = Seen(self._now)

    def _check_usable(self) -> None:
        if self._closed or self._pid != os.getpid():
            _ = self._now.index.usable  # raises what was said when it became unusable
            raise RadixError(f"this client of {self._name} is unusable; make a new one")

    def _after_fork_in_child(self) -> None:
        self._inherited = self._now, self._seen  # nothing of them is to run in the child
        self._refuse(
            RadixError,
            f"this client of {self._name} was made before a fork; make a new one in the child",
        )

    # ------------------------------------------------------------ attaching

    def _attach(self) -> None:
        """Map the regions and register, unless that is done; the calling thread sees it."""
        connection = None
        with self._attaching:
            self._check_usable()
            index = self._now.index
            if not (isinstance(index, _core.Index) and index.usable):
                connection = self._attach_new()
            self._seen.take()
        if connection is not None:
            self._link.keep(connection)

    def _attach_new(self) -> socket.socket | None:
        index = _core.Index.attach(self._name, self._group, self._read_only)
        store = None
        try:
            identity = Identity.decode(index.identity, self._name)
            self._check_same(identity)
            store = self._attach_store(identity)
            connection = None if self._read_only else self._announce(index)
        except BaseException:
            index.close()
            if store is not None:
                store.close()
            raise
        now = self._now
        old = now.index, now.store, now.connections
        now.index, now.store, self._identity = index, store, identity
        now.connections = self._connections(index)
        _end(*old)  # threads that still name them get errors, and then the new ones
        return connection

    def _connections(self, index: _core.Index) -> Connections | None:
        lookups = self._info.lookups
        if lookups is None:
            return None
        from .cluster.connections import Connections

        return Connections(index, self._path, lookups)

    def _check_same(self, identity: Identity) -> None:
        if self._identity is None:
            return
        mine = self._identity.geometry_value()
        difference = mine.difference(identity.geometry_value(), mine="client", theirs="server")
        if difference:
            raise GeometryMismatch(
                f"{self._name} was started anew with another geometry; make a new client:\n"
                f"{difference}"
            )

    def _attach_store(self, identity: Identity) -> SlotStore | None:
        if not identity.data_name:
            return None
        store = SlotStore.attach(
            identity.data_name,
            identity.hugepage_path,
            timeout_ms=_STORE_TIMEOUT_MS,
            read_only=self._read_only,
        )
        if store.nonce != identity.nonce:
            store.close()
            raise ServerNotReady(
                f"the slots {identity.data_name} are not those of the index {self._name}; its "
                "server is being replaced, try again"
            )
        return store

    def _announce(self, index: _core.Index) -> socket.socket:
        """A connection on which the server knows who this client is."""
        connection = connect(self._path, _ASK_TIMEOUT_S)
        try:
            request = Attached(client_id=index.client_id, generation=index.generation)
            exchange(connection, request, _ASK_TIMEOUT_S)
        except BaseException:
            connection.close()
            raise
        return connection

    def _reconnect(self) -> socket.socket:
        """Called by the link's thread until it returns: the server has gone or was replaced."""
        self._check_usable()
        index = self._now.index
        if index.usable:
            return self._announce(index)
        self._info = ask_info(self._path, Hello(), _ASK_TIMEOUT_S)
        if self._info.mode == "waiting" and self._wanted is not None:
            request = Configure(geometry=self._wanted.to_dict())
            self._info = ask_patiently(self._path, request, _ASK_TIMEOUT_S, self._check_usable)
        with self._attaching:
            self._check_usable()
            if self._now.index.usable:  # a call of this client was quicker
                return self._announce(self._now.index)
            connection = self._attach_new()
        assert connection is not None  # a read-only client has no link
        return connection

    def _attached_anew(self, failed: _core.Index, error: RadixError) -> _core.Index:
        if not self._attaching.acquire(timeout=_ASK_TIMEOUT_S):
            raise error
        try:
            if self._now.index is failed:
                if not isinstance(error, ServerNotReady):
                    raise error
                self._attach()
            self._seen.take()
        except (ServerNotReady, TimeoutError):  # not there, or there and silent
            raise error from None
        finally:
            self._attaching.release()
        if isinstance(failed, _core.Index):
            raise ServerNotReady(
                f"the server of {self._name} was replaced: slots, cursors and results of before "
                "are void; call again to use the new one"
            ) from None
        return self._seen.index

    # ------------------------------------------------------------ attributes

    @property
    def name(self) -> str:
        return self._name

    @property
    def info(self) -> Info:
        """The state as last heard from the server; `status()` asks anew."""
        return self._info

    @property
    def geometry(self) -> dict[str, Any] | None:
        """The geometry with slot counts; None while the server waits for one."""
        return self._identity.geometry if self._identity is not None else self._info.geometry

    @property
    def store(self) -> SlotStore | None:
        """The slots; None for an index-only server, or before there is a geometry."""
        return self._seen.store

    @property
    def index(self) -> RadixClient:
        """The index calls: the client itself."""
        return self

    def is_distributed(self) -> bool:
        return self.world_size() > 1

    def rank(self) -> int:
        return self._index.rank

    def world_size(self) -> int:
        """Nodes of the cluster, those included that cannot be read."""
        return self._index.world_size

    def block_size(self) -> int:
        """Tokens per block."""
        geometry = self.geometry
        if geometry is None:
            raise ServerNotReady(self._no_geometry())
        return int(geometry["block_size"])

    def slot_view(self, slot: int, component: int = ComponentType.FULL) -> memoryview:
        """The bytes of one slot, writable, the stride long."""
        return self._need_store().slot_view(slot, component)

    def _need_store(self) -> SlotStore:
        store = self._seen.store
        if store is None:
            self._check_usable()
            if self._identity is None:
                raise ServerNotReady(self._no_geometry())
            raise RadixError(f"{self._name} is an index-only server; start it with --data-bytes")
        return store

    # ------------------------------------------------------------ pulls and events

    def pull_async(
        self,
        hashes: Any,
        mask: int = COMPONENT_MASK_FULL,
        *,
        lock: bool = True,
        timeout_ms: int = 30000,
        block: bool = True,
    ) -> PullJob:
        """Bring the longest known prefix into local slots.

        Without a better peer the job is complete at once, with the local hit. `timeout_ms` ends the
        fetch with what has arrived. With max_outstanding jobs uncollected a fetch waits for room,
        no longer than that; with `block` False it is not made. ValueError for a timeout below 0.
        """
        if timeout_ms < 0:
            raise ValueError(f"timeout_ms is {timeout_ms}; it must be at least 0")
        jobs = self._open_jobs
        full = jobs.full
        if not block and full:
            self.saturated += 1
        local = self.query(hashes, mask, local_only=True, lock=lock)
        peers = self._seen.peers
        if peers is None or local.status or (full and not block):
            return PullJob(local, jobs, 0 if peers is None else self.rank())
        timeout_s = min(timeout_ms / 1000, LONGEST_S)
        return self._pull_from_peers(as_hashes(hashes), mask, local, peers, timeout_s, lock)

    def _pull_from_peers(
        self,
        hashes: npt.NDArray[np.uint64],
        mask: int,
        local: QueryResult,
        peers: _core.PeerIndex,
        timeout_s: float,
        lock: bool,
    ) -> PullJob:
        candidates = []
        if local.common_hit < len(hashes):
            candidates = peers.candidates(hashes, mask, local.common_hit)
        if not candidates or not timeout_s:
            return PullJob(local, self._open_jobs, self.rank())
        begin = time.monotonic()
        if self._open_jobs.full and not self._open_jobs.wait_for_room(timeout_s):
            self.saturated += 1
            return PullJob(local, self._open_jobs, self.rank())
        timeout_s -= time.monotonic() - begin
        job = PullJob(local, self._open_jobs, self.rank(), candidates[0][1])
        self._pulls.start(job, hashes, mask, candidates, timeout_s, lock)
        return job

    def _local_answer(self, hashes: npt.NDArray[np.uint64], mask: int, lock: bool) -> QueryResult:
        return self._now.index.query(hashes, mask, True, lock, True)

    def _pull_ended(self, done: PullDone) -> None:
        self.transfer_failures += done.failures
        self.staging_shortfalls += done.staging_shortfalls
        self.promotion_shortfalls += done.promotion_shortfalls

    def _ask_server(self, request: Request, timeout_s: float) -> Reply:
        self._check_usable()
        return ask(self._path, request, timeout_s)

    def _tell_server(self, request: Request) -> None:
        self._check_usable()
        tell(self._path, request)

    def peer_connections(self) -> list[dict[str, Any]]:
        """How this process reads each peer, itself included. Empty without a cluster."""
        connections = self._now.connections
        return [] if connections is None else connections.figures()

    def lookup_figures(self) -> dict[str, Any]:
        """Totals of this process's lookups at peers: see docs/api.md. Empty without a cluster."""
        connections = self._now.connections
        return {} if connections is None else connections.peers.figures()

    @property
    def kvevent_enabled(self) -> bool:
        """Whether the server was started with kvevent_ring_capacity above 0."""
        return self._identity is not None and self._identity.kvevents

    def kvevent_seek_to_head(self) -> None:
        """Forget all events up to now."""
        self._event_call(lambda index: index.kvevent_seek_to_head())

    def kvevent_drain(self, max_hashes: int) -> tuple[npt.NDArray[np.uint64], bool]:
        """Hashes of the next events, and whether some were lost (then resync)."""
        return self._event_call(lambda index: index.kvevent_drain(max_hashes))

    def _event_call(self, call: Callable[[_core.Index], _T]) -> _T:
        self._check_usable()
        if self._identity is not None and not self._identity.kvevents:
            raise RadixError(
                f"{self._name} keeps no KV events; start it with --kvevent-ring-capacity above 0"
            )
        return call(self._index)


def _end(index: _core.Index, store: SlotStore | None, connections: Connections | None) -> None:
    if connections is not None:
        connections.close()
    if isinstance(index, _core.Index):
        index.close()
    if store is not None:
        store.close()


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
