# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`RadixServer`: one radix-server, as a thread of this process.

The thread runs an event loop with the control socket, the reaper, the evictor and the prefault.
Clients of the same process use the server like any other. The `radix-server` command is this
class and a wait for a signal.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import socket
import threading
import traceback
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from .cluster.cluster import Cluster
from .config import ServerConfig
from .control import ControlSocket, ReplyWithDescriptor
from .errors import RadixError, ServerNotReady
from .evictor import Evictor
from .host import (
    access_of_group,
    check_directories,
    clear_stale_socket,
    raise_descriptor_limit,
)
from .messages import (
    Attached,
    Configure,
    Dial,
    Done,
    Drain,
    Flush,
    FlushReply,
    Hello,
    Info,
    InfoReply,
    Reply,
    Request,
    Reset,
    Status,
    StatusReply,
    WaitReady,
)
from .node import Events, Node
from .prefault import Prefault
from .reaper import Reaper
from .report import status_line, status_report
from .rpc import ProtocolError
from .tasks import Tasks

__all__ = ["RadixServer"]

_log = logging.getLogger("radixshmem.server")
_T = TypeVar("_T")
_running: weakref.WeakSet[RadixServer] = weakref.WeakSet()


class RadixServer:
    """A server of one cache. Safe to use from several threads; `close` is idempotent."""

    def __init__(self, config: ServerConfig, *, on_event: Events | None = None) -> None:
        """`on_event(what, figures)` is called from the server's thread: see docs/api.md."""
        config.validate()
        self.config = config
        self._listener = _Listener(config.name, on_event)
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: _Work | None = None
        self._stop: asyncio.Event | None = None
        self._closing = threading.Lock()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def running(self) -> bool:
        """Whether the server's thread lives in this process."""
        return self._pid == os.getpid() and self._thread is not None and self._thread.is_alive()

    @property
    def geometry(self) -> dict[str, Any] | None:
        """The geometry with slot counts; None until a client configured it."""
        return self.info().geometry

    def info(self) -> Info:
        """The same state that clients see. RadixError unless the server runs."""
        return self._running_work().node.info()

    def status(self) -> dict[str, Any]:
        """What `radix-server status --json` prints. Not from `on_event`."""
        self._listener.check_outside("status()")
        return self._call(self._running_work().status())

    def start(self) -> RadixServer:
        """Claim the name and listen. Raises what went wrong; returns the server itself."""
        if self._thread is not None:
            raise RadixError(f"the server of {self.name} was started before; make a new one")
        started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(started)),
            name=f"radix-server {self.name}",
            daemon=True,
        )
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self.close()
            raise
        _running.add(self)
        return self

    def close(self) -> None:
        """Delete the regions and the socket, and end the thread. Clients get ServerNotReady.

        Not from `on_event`, whose return the thread waits for: RadixError.
        """
        if self._pid != os.getpid():
            return  # inherited by a forked child: the server lives in the parent
        self._listener.check_outside("close()")
        with self._closing:
            _running.discard(self)
            if self._thread is None:
                return
            if self._thread.is_alive() and self._loop is not None and self._stop is not None:
                try:
                    self._loop.call_soon_threadsafe(self._stop.set)
                except RuntimeError:
                    _log.debug("the loop of %s has ended already", self.name)
            self._thread.join()
            self._work = None

    def __enter__(self) -> RadixServer:
        return self if self._thread is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running_work(self) -> _Work:
        work = self._work
        if work is None or self._pid != os.getpid():
            raise RadixError(f"the server of {self.name} is not running in this process; start it")
        return work

    def _call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _main(self, started: concurrent.futures.Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        work = _Work(self.config, self._listener.tell)
        try:
            try:
                await work.open()
            except BaseException as error:
                await work.close(started=False)
                traceback.clear_frames(error.__traceback__)  # they hold the claimed name
                started.set_exception(error)
                return
            self._work = work
            started.set_result(None)
            await self._stop.wait()
        finally:
            self._work = None
            if started.exception() is None:
                await work.close()


class _Listener:
    """Calls `on_event`, and knows which threads of the server are inside of it."""

    def __init__(self, name: str, on_event: Events | None) -> None:
        self._name = name
        self._on_event = on_event
        self._inside: set[int] = set()

    def tell(self, what: str, figures: dict[str, Any]) -> None:
        """Whatever the listener does (a closed stdout ends it), the server goes on.

        Without one the log is told, but for the progress of the prefault.
        """
        if self._on_event is None:
            if what != "prefault":
                _log.info("%s: %s", self._name, what)
            return
        thread = threading.get_ident()
        self._inside.add(thread)
        try:
            self._on_event(what, figures)
        except (Exception, SystemExit) as error:
            _log.warning("%s: nobody was told of %r: %r", self._name, what, error)
        finally:
            self._inside.discard(thread)

    def check_outside(self, call: str) -> None:
        """RadixError for a call that would wait for the listener that makes it."""
        if threading.get_ident() in self._inside:
            raise RadixError(
                f"{call} of the server of {self._name} was called from its on_event, for whose "
                "return the server waits; set a threading.Event there and call it elsewhere"
            )


class _Work:
    """Everything that runs in the event loop of one server."""

    def __init__(self, config: ServerConfig, tell: Events) -> None:
        self.config = config
        self._tell = tell
        # The core wants the calls of an IndexServer one at a time; looking needs no order.
        self._owner_thread = concurrent.futures.ThreadPoolExecutor(1, "radix-server-owner")
        self._threads = concurrent.futures.ThreadPoolExecutor(3, "radix-server")
        self._tasks = Tasks("a background job of the server")
        self._reaper: Reaper | None = None
        self._prefault: Prefault | None = None
        self._control: ControlSocket | None = None
        self.node = Node(config, self._run_as_owner, self._event)
        self._cluster: Cluster | None = None
        if config.registry:
            self._cluster = Cluster(config, self.node, self._run, self._run_as_owner)
            self.node.cluster = self._cluster

    async def _run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await _run_in(self._threads, function, *arguments)

    async def _run_as_owner(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await _run_in(self._owner_thread, function, *arguments)

    async def open(self) -> None:
        mode, gid = access_of_group(self.config.group)
        path = check_directories(self.config)
        raise_descriptor_limit(self.config.max_clients, self._cluster is not None)
        await self.node.open()
        if self._cluster is not None:
            await self._cluster.open()
            if self.node.regions is not None:
                await self._cluster.check_adopted(self.node.regions)
        clear_stale_socket(path)
        self._control = ControlSocket(path, self._handle, self._pulls, self._hung_up)
        await self._control.open(mode, gid)
        unused = self.config.without_effect()
        if unused:
            _log.warning("set, but without effect here: %s", ", ".join(unused))
        self.node.announce()

    async def close(self, *, started: bool = True) -> None:
        """`started`: whether `open` succeeded; if not, a cache that it adopted is left as it is."""
        if self._control is not None:
            await self._control.close()
        await self.node.settle()  # it may start tasks
        if self._cluster is not None:
            await self._cluster.close()
        if self._prefault is not None:
            self._prefault.cancel()
        await self._tasks.cancel()
        await self.node.close(started=started)
        self._owner_thread.shutdown()
        self._threads.shutdown()

    # ------------------------------------------------------------ background work

    def _event(self, what: str, figures: dict[str, Any]) -> None:
        if what in ("ready", "adopted"):
            self._start_tasks()
        self._tell(what, figures)

    def _start_tasks(self) -> None:
        regions, owner = self.node.regions, self.node.owner
        assert regions is not None
        assert owner is not None
        self._reaper = Reaper(owner, regions.index, self._run_as_owner, self.config.quarantine_s)
        evictor = Evictor(regions.index, self._run, self.config.background_evict_ratio)
        jobs = [self._reaper.run(), evictor.run()]
        if regions.store is not None and self.config.prefault:
            self._prefault = Prefault(regions.store, self._run, self._prefault_progress)
            jobs.append(self._prefault.run())
        if self.config.status_interval_s > 0:
            jobs.append(self._log_status())
        if self._cluster is not None:
            self._cluster.attach(regions)
        for job in jobs:
            self._tasks.start(job)

    def _prefault_progress(self, done_bytes: int, total_bytes: int) -> None:
        self._tell("prefault", {"done_bytes": done_bytes, "total_bytes": total_bytes})

    async def _log_status(self) -> None:
        while True:
            await asyncio.sleep(self.config.status_interval_s)
            _log.info("%s", status_line(await self.status()))

    # ------------------------------------------------------------ requests

    def _hung_up(self) -> None:
        if self._reaper is not None:
            self._reaper.look()

    async def _pulls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cluster is None:
            raise ProtocolError("this server has no peers to pull from")
        await self._cluster.serve_pulls(reader, writer)

    async def _handle(self, request: Request, peer: socket.socket) -> Reply | ReplyWithDescriptor:
        if isinstance(request, Hello):
            return InfoReply(info=self.node.info())
        if isinstance(request, WaitReady):
            return InfoReply(info=await self.node.wait_settled(request.timeout_s))
        if isinstance(request, Configure):
            return InfoReply(info=await self.node.configure(request.geometry))
        if isinstance(request, Attached):
            if self._reaper is None:
                raise RadixError("no index yet, so no client can be attached to it")
            await self._reaper.attached(request.client_id, request.generation, peer)
            return InfoReply(info=self.node.info())
        if isinstance(request, Status):
            return StatusReply(status=await self.status())
        return await self._handle_cluster(request)

    async def _handle_cluster(self, request: Request) -> Reply | ReplyWithDescriptor:
        cluster, regions = self._cluster, self.node.regions
        if regions is None:
            raise ServerNotReady(f"{self.config.name} has no geometry yet")
        if isinstance(request, Flush):
            complete = cluster is None or await cluster.flush(request.timeout_s)
            return FlushReply(complete=complete)
        if isinstance(request, Reset):
            if cluster is None:
                await self._run(regions.index.reset)
            else:
                await cluster.reset()
            return Done()
        if cluster is None:
            raise RadixError(
                f"{self.config.name} is in no cluster; start it with --registry to have peers"
            )
        if isinstance(request, Dial):
            return await cluster.dial(request.rank)
        if isinstance(request, Drain):
            await cluster.drain()
            if request.forget_geometry:
                await self._forget_geometry()
            return Done()
        raise ProtocolError(f"{type(request).__name__} is not a request of its own")

    async def _forget_geometry(self) -> None:
        if self._prefault is not None:
            self._prefault.cancel()
        await self._tasks.cancel()
        self._reaper = self._prefault = None
        if self._cluster is not None:
            await self._cluster.detach()
        await self.node.forget_geometry()

    async def status(self) -> dict[str, Any]:
        prefault = self._prefault.figures() if self._prefault is not None else None
        reaped = self._reaper.reaped if self._reaper is not None else 0
        report = await self._run(
            status_report, self.node.info(), self.node.regions, prefault, reaped
        )
        if self._cluster is not None:
            report["cluster"] = self._cluster.report()
        return report


async def _run_in(
    threads: concurrent.futures.ThreadPoolExecutor, function: Callable[..., _T], *arguments: Any
) -> _T:
    try:
        future = asyncio.get_running_loop().run_in_executor(threads, function, *arguments)
    except RuntimeError:  # the interpreter exits: its executors take nothing any more
        return function(*arguments)
    return await future


def _close_all() -> None:
    for server in list(_running):
        server.close()


atexit.register(_close_all)
