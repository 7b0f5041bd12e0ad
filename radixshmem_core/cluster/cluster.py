# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A server as a member of a cluster: everything that `registry` turns on.

Membership begins with the server; what needs an index (publication, leases, pulls) begins when a
client has given the geometry, and begins anew when the reset epoch is raised.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import logging
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .._version import __version__
from ..config import ServerConfig
from ..control import ReplyWithDescriptor
from ..errors import RadixError, ServerNotReady
from ..messages import Dialed
from ..node import Node, Runner
from ..regions import Regions
from ..rpc import ProtocolError
from ..tasks import Tasks, wait_in_thread
from . import wire
from .addresses import is_loopback, own_address
from .auth import load_token
from .dialer import dial
from .listener import Listener
from .membership import Membership
from .node_rows import own_row, peer_row
from .peer_link import serve_peer
from .peers import Peer, Peers
from .pull_jobs import PullJobs
from .pull_state import PullDeadline, PullOutcome
from .registry import Member, RegistryOptions, RegistryUnavailable, open_registry
from .reset import ask_to_drop, drop_outdated
from .shared_index import SharedIndex, digest_of, geometry_key
from .ways_in import WaysIn

__all__ = ["Cluster"]

_log = logging.getLogger("radixshmem.server")
_T = TypeVar("_T")

_DIAL_TIMEOUT_S = 2.0
_MAX_EPOCHS = 1000  # of other geometries than the own one
_NO_DIGEST = 1 << 63  # of no tree
_BOOTSTRAP_POLL_S = 0.2
_ATTACH_S = 5.0  # the longest that a reset waits for the index to be shared


class Cluster:
    """Lives in the event loop of its server."""

    def __init__(self, config: ServerConfig, node: Node, run: Runner, run_as_owner: Runner) -> None:
        self._config = config
        self._node = node
        self._run = run
        self._run_as_owner = run_as_owner
        self._instance = secrets.randbits(63) | 1
        self._threads = concurrent.futures.ThreadPoolExecutor(3, "radix-server-registry")
        self._token = b""
        self._listener: Listener | None = None
        self._membership: Membership | None = None
        self._ways_in = WaysIn(config, run)
        self._shared: SharedIndex | None = None
        self._regions: Regions | None = None
        self._epochs: dict[str, int] = {}
        self._jobs: PullJobs | None = None
        self._attaching: asyncio.Task[None] | None = None
        self._attached = asyncio.Event()
        self._attach_error = ""
        self._changing = asyncio.Lock()
        self._tasks = Tasks("a job of the cluster")
        self._peers = Peers(self._dial, self.describe, self._peers_changed)
        self._address = ""
        self._port = 0
        self._node_name = config.node_name or socket.gethostname()

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        """Listen, register, follow the others. NameTaken when a living server has the name."""
        self._loop = asyncio.get_running_loop()
        config = self._config
        self._address = own_address(config.registry, config.rpc_address, config.rpc_interface)
        self._token = load_token(
            config.cluster_token_file, loopback_only=is_loopback(self._address)
        )
        await self._ways_in.check()
        self._listener = Listener(
            self._token, {wire.CONTROL: self._serve_control, wire.INDEX: self._serve_index}
        )
        self._port = await self._listener.open(self._address, config.rpc_port, config.ports())
        registry = open_registry(
            config.registry, cluster_id=config.cluster_id, options=_registry_options(config)
        )
        self._membership = Membership(
            registry,
            self._run_registry,
            self._node_name,
            self._instance,
            (self._address, self._port),
            self._members_changed,
        )
        try:
            await self._membership.join()
        except RegistryUnavailable as error:
            self._membership.last_error = str(error)
            _log.warning("the registry cannot be reached; this node goes on alone: %s", error)
        self._tasks.start(self._membership.run())
        if config.expected_min_nodes > 1:
            self._tasks.start(self._await_members())

    def attach(self, regions: Regions) -> None:
        """The index is there: share it. `detach` waits for what this has begun."""
        self._regions = regions
        self._attaching = asyncio.create_task(self._attach(regions))

    async def _attach(self, regions: Regions) -> None:
        try:
            async with self._changing:  # a peer may ask to share anew
                await self._ways_in.open(regions, self._address, self._dial_from_thread)
                self._jobs = PullJobs(
                    regions.index,
                    self._pull,
                    max_pending_jobs=self._config.max_pending_jobs,
                    job_ttl_s=self._config.job_ttl_s,
                )
                await self._share()
            self._attach_error = ""
        except Exception as error:
            _log.exception("%s: the cache is not shared with the cluster", self._config.name)
            self._attach_error = str(error) or repr(error)
        self._attached.set()

    async def detach(self) -> None:
        """The index goes: nobody reads it any more, and nothing here does."""
        self._regions = None
        if self._attaching is not None:
            await asyncio.wait((self._attaching,))
        self._attached.clear()
        jobs, self._jobs = self._jobs, None
        async with contextlib.AsyncExitStack() as ends:  # the last first, whatever one raises
            ends.push_async_callback(self._ways_in.close)
            ends.push_async_callback(self._unshare)
            if jobs is not None:
                ends.push_async_callback(jobs.close)

    async def _unshare(self) -> None:
        async with self._changing:
            shared, self._shared = self._shared, None
            if shared is not None:
                await shared.close()
        self._peers.tell()

    async def close(self) -> None:
        """Leave: peers drop this node at once instead of waiting for its lease to run out."""
        membership, listener = self._membership, self._listener
        async with contextlib.AsyncExitStack() as ends:  # the last first, whatever one raises
            ends.callback(self._threads.shutdown, wait=False)
            if membership is not None:
                ends.push_async_callback(membership.close)
            if listener is not None:
                ends.push_async_callback(listener.close)
            ends.push_async_callback(self._peers.close)
            ends.push_async_callback(self.detach)
            if membership is not None:
                ends.push_async_callback(membership.leave)
            ends.push_async_callback(self._tasks.cancel)

    async def _run_registry(self, function: Callable[..., _T], *arguments: Any) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    async def _await_members(self) -> None:
        """Hold readiness until enough nodes are there; after a while say what is missing."""
        wanted = self._config.expected_min_nodes
        deadline = asyncio.get_running_loop().time() + self._config.bootstrap_timeout_s
        while self.world_size < wanted:
            if asyncio.get_running_loop().time() > deadline:
                self._node.hold(self._missing_members(wanted))
            await asyncio.sleep(_BOOTSTRAP_POLL_S)
        self._node.enough_members()

    def _missing_members(self, wanted: int) -> str:
        reason = f"{self.world_size} of {wanted} nodes (expected_min_nodes) have joined"
        if self._membership is not None and self._membership.last_error:
            reason += f"; {self._membership.last_error}"
        return reason

    # ------------------------------------------------------------ what is known

    @property
    def rank(self) -> int:
        me = self._membership.me if self._membership is not None else None
        return 0 if me is None else me.rank

    @property
    def world_size(self) -> int:
        return 1 + len(self._peers)

    @property
    def data_plane(self) -> str:
        return self._ways_in.plane_name

    def describe(self) -> wire.Description:
        """This server, for its peers."""
        shared = self._shared
        return wire.Description(
            version=__version__,
            node=self._node_name,
            rank=self.rank,
            instance=self._instance,
            mode=self._node.mode,
            **({} if shared is None else shared.describe()),
        )

    def report(self) -> dict[str, Any]:
        """For `radix-server status` and `nodes`."""
        shared, membership = self._shared, self._membership
        where = f"{self._address}:{self._port}"
        report: dict[str, Any] = {
            "node": self._node_name,
            "rank": self.rank,
            "address": where,
            "registry": self._config.registry,
            "registry_error": membership.last_error if membership is not None else "",
            "attach_error": self._attach_error,
            **self._ways_in.report(),
            "nodes": [
                own_row(self.describe(), where),
                *(peer_row(peer, 0 if shared is None else shared.digest) for peer in self._peers),
            ],
        }
        if self._listener is not None:
            report["listener"] = self._listener.figures()
        if self._jobs is not None:
            report["pull_jobs"] = self._jobs.figures()
        if shared is not None:
            report |= shared.report()
        return report

    # ------------------------------------------------------------ changes

    def _members_changed(self, members: Sequence[Member], epochs: dict[str, int]) -> None:
        self._peers.set_members(members, self._instance)
        self._epochs = epochs
        shared = self._shared
        if shared is None:
            return
        if shared.rank != self.rank or epochs.get(shared.key, 0) > shared.epoch:
            self._tasks.start(self._share_anew())
        else:
            shared.peers_changed()

    def _peers_changed(self) -> None:
        if self._shared is not None:
            self._shared.peers_changed()

    def _description_changed(self) -> None:
        self._peers.tell()
        if self._shared is not None:
            self._shared.peers_changed()

    async def _share_anew(self) -> None:
        async with self._changing:
            await self._share()

    async def _share(self) -> None:
        """Begin, or begin anew because the rank or the epoch is another. Requires: _changing."""
        regions, old = self._regions, self._shared
        if regions is None:
            return
        key = geometry_key(regions.identity.geometry)
        epoch = self._epochs.get(key, 0)
        if old is not None:
            if old.rank == self.rank and epoch <= old.epoch:
                return
            self._shared = None
            await old.close()
        digest = digest_of(key, epoch)
        if not await self._drop_outdated(regions, digest, lambda: self._regions is regions):
            return
        self._shared = SharedIndex(
            self._config,
            regions,
            epoch,
            self.rank,
            self._ways_in.plane,
            self._run,
            self._run_as_owner,
            self._peers,
            self._description_changed,
        )
        if old is not None and old.draining:
            await self._shared.withdraw()
        self._description_changed()

    async def check_adopted(self, regions: Regions) -> None:
        """Before clients hear of it: drop what a reset has outdated while the server was down, or
        may have outdated when the registry does not say."""
        key = geometry_key(regions.identity.geometry)
        known = self._membership is not None and self._membership.me is not None
        digest = digest_of(key, self._epochs.get(key, 0)) if known else _NO_DIGEST
        await self._drop_outdated(regions, digest, lambda: True)

    async def _drop_outdated(
        self, regions: Regions, digest: int, wanted: Callable[[], bool]
    ) -> bool:
        return await drop_outdated(regions.index, (self.rank, digest), self._run, wanted)

    async def reset(self) -> None:
        """Raise the epoch, drop the own tree, and wait until every member has dropped its own.

        RadixError naming those that did not confirm it in time.
        """
        await self._wait_attached(_ATTACH_S)
        shared, membership = self._shared, self._membership
        if shared is None or membership is None:
            why = f": {self._attach_error}" if self._attach_error else ""
            raise ServerNotReady(f"{self._config.name} shares no index that could be reset{why}")
        async with self._changing:
            epoch = await membership.raise_epoch(shared.key, above=shared.epoch)
            self._epochs = {**self._epochs, shared.key: epoch}
            await self._share()
        await ask_to_drop(self._peers, wire.EpochRaised(key=shared.key, epoch=epoch))

    async def flush(self, timeout_s: float) -> bool:
        """Whether every insert until now is known to its shard holders."""
        begin = asyncio.get_running_loop().time()
        await self._wait_attached(timeout_s)
        left = timeout_s - (asyncio.get_running_loop().time() - begin)
        shared = self._shared
        return shared is not None and await shared.publication.flush(left)

    async def _wait_attached(self, timeout_s: float) -> None:
        """Until the index is shared, or could not be."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._attached.wait(), timeout_s)

    async def drain(self) -> None:
        if self._shared is not None:
            await self._shared.drain()

    # ------------------------------------------------------------ peers ask

    async def _serve_control(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            await serve_peer(reader, writer, self._answer)
        except OSError as error:
            _log.debug("a peer went away: %s", error)
        except ProtocolError as error:
            _log.warning("closing the connection of a peer: %s", error)

    async def _serve_index(self, connection: socket.socket) -> None:
        self._ways_in.serve(connection)

    async def _answer(self, request: wire.PeerRequest) -> wire.PeerReply:
        if isinstance(request, wire.Describe):
            self._heard(request.mine)
            return wire.Described(mine=self.describe())
        shared = self._shared
        if isinstance(request, wire.EpochRaised):
            known = request.key in self._epochs or len(self._epochs) < _MAX_EPOCHS
            if known and self._epochs.get(request.key, 0) < request.epoch:
                self._epochs = {**self._epochs, request.key: request.epoch}
            await self._share_anew()
            return wire.Accepted()
        if shared is None:
            raise ServerNotReady("this node has no index yet")
        if isinstance(request, wire.Publish):
            shared.apply(request)
            return wire.Accepted()
        if isinstance(request, wire.Lease):
            if shared.draining:
                raise RadixError("this node drains and gives no leases")
            return shared.leases.grant(request)
        if isinstance(request, wire.LeaseEnd):
            return shared.leases.end(request.lease)
        assert isinstance(request, wire.PlaneMetadata)
        plane = self._ways_in.plane
        if plane is None or request.plane != plane.name:
            raise RadixError(
                f"{self._node_name} moves slots with {self.data_plane or 'nothing'}, who asks for "
                f"them with {request.plane}; give both the same --transfer-backend"
            )
        return wire.PlaneReply(metadata=await self._run(plane.local_metadata))

    def _heard(self, description: wire.Description) -> None:
        if not self._peers.hear(description) and self._membership is not None:
            self._membership.look()  # the registry has a member that this node has not listed yet

    # ------------------------------------------------------------ asking peers

    async def _dial(self, address: str, port: int, channel: str) -> socket.socket:
        return await dial(address, port, channel, self._token, _DIAL_TIMEOUT_S)

    def _dial_from_thread(self, rank: int) -> socket.socket:
        """An index stream to a peer, for the data plane's threads."""
        return wait_in_thread(
            self._dial_rank(rank), self._loop, 2 * _DIAL_TIMEOUT_S, f"rank {rank} was not reached"
        )

    async def _dial_rank(self, rank: int) -> socket.socket:
        return await self._known_peer(rank)[0].dial(wire.INDEX)

    def _known_peer(self, rank: int) -> tuple[Peer, wire.Description]:
        peer = self._peers.of_rank(rank)
        if peer is None or peer.description is None:
            raise RadixError(f"rank {rank} is no peer that is known here")
        return peer, peer.description

    async def dial(self, rank: int) -> ReplyWithDescriptor:
        """How a process of this node may read a peer, with an index stream to it."""
        peer, said = self._known_peer(rank)
        reply = Dialed(incarnation=said.incarnation, index_name=said.index_name)
        return ReplyWithDescriptor(reply, await peer.dial(wire.INDEX))

    # ------------------------------------------------------------ pulls

    async def serve_pulls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client's connection for its pull jobs."""
        await self._attached.wait()
        if self._jobs is None:
            raise ServerNotReady(f"{self._config.name} pulls nothing: {self._attach_error}")
        await self._jobs.serve(reader, writer)

    async def _pull(
        self,
        hashes: Any,
        mask: int,
        local_hit: int,
        candidates: Sequence[tuple[int, int]],
        deadline: PullDeadline,
    ) -> PullOutcome:
        shared = self._shared
        if shared is None or shared.puller is None:
            return PullOutcome(local_hit)
        return await shared.puller.pull(hashes, mask, local_hit, candidates, deadline)


def _registry_options(config: ServerConfig) -> RegistryOptions:
    names = [field.name for field in dataclasses.fields(RegistryOptions)]
    return RegistryOptions(**{name: getattr(config, name) for name in names})
