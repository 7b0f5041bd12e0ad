# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The data plane over NIXL with its UCX backend.

The metadata of a peer travels in our control messages; UCX listens by itself, see
docs/data_planes.md. A thread of ours does all calls into the agent that reads, because

- a post between processes of one host copies in the calling thread, and a look at one transfer
  moves the bytes of all, for as long as there are any;
- a remote agent that is removed makes NIXL call its transfers failed while their bytes still
  arrive. So a peer that is forgotten is removed only when its transfers are over.

Over tcp another process serves our slots: see nixl_target.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import RadixError
from ...store import SlotStore
from .base import (
    Blocks,
    Memory,
    PeerKey,
    PlaneConfig,
    PlaneMissing,
    RemoteMemory,
    TransferState,
    checked_blocks,
)
from .devices import chosen_protocol
from .nixl_agent import bindings, set_environment, start_agent, why_missing
from .nixl_target import Target

__all__ = ["NixlPlane", "why_missing"]

_FIRST_LOOK_S = 50e-6
_LAST_LOOK_S = 5e-3
_STOP_S = 30.0

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Peer:
    remote: RemoteMemory
    agent: str = ""  # its name in the agent, when that knows it
    transfers: int = 0  # posted and not over
    leave: bool = False  # remove it from the agent when there are none


@dataclass(eq=False)
class _Transfer:
    peer: _Peer
    blocks: Blocks
    state: TransferState = "pending"
    handle: int = 0

    def poll(self) -> TransferState:
        return self.state


class NixlPlane:
    """See base.DataPlane. One for a process: UCX takes its options from the environment."""

    name = "nixl"

    def __init__(
        self, store: SlotStore, hugepage_path: str, config: PlaneConfig, address: str
    ) -> None:
        """`address`: where peers reach this server, unless config names a transfer_ip."""
        missing = why_missing()
        if missing:
            raise PlaneMissing(missing)
        set_environment(config, config.transfer_ip or address)
        self._memory = Memory.of(store)
        self._nixl: Any = bindings()
        self._agent: Any = start_agent(self._memory)
        self._own = RemoteMemory(self.name, *self._memory, self._agent.getLocalMD())
        over_tcp = chosen_protocol(config) == "tcp"
        self._target = Target(store.name, hugepage_path) if over_tcp else None
        self._changed = threading.Condition()  # guards the four below
        self._peers: dict[PeerKey, _Peer] = {}
        self._forgotten: list[_Peer] = []
        self._queued: list[_Transfer] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="radixshmem-nixl", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # UCX does not survive the interpreter's end

    def local_metadata(self) -> bytes:
        """Changes when the process that serves had to be started again."""
        if self._target is None:
            return self._own.encode()
        address, agent = self._target.serving()
        return RemoteMemory(self.name, address, self._memory.data_bytes, agent).encode()

    def connect(self, peer: PeerKey, metadata: bytes) -> None:
        remote = RemoteMemory.decode(self.name, metadata)
        with self._changed:
            known = self._peers.get(peer)
            if known is not None and known.remote == remote:
                return
            self._forget(peer)
            self._peers[peer] = _Peer(remote)

    def forget(self, peer: PeerKey) -> None:
        with self._changed:
            self._forget(peer)

    def _forget(self, peer: PeerKey) -> None:
        known = self._peers.pop(peer, None)
        if known is not None:
            self._forgotten.append(known)
            self._changed.notify()

    def read(
        self,
        peer: PeerKey,
        remote_offsets: Sequence[int],
        local_offsets: Sequence[int],
        lengths: Sequence[int],
    ) -> _Transfer:
        with self._changed:
            if self._closed:
                raise RadixError("this data plane is closed")
            known = self._peers.get(peer)
            if known is None:
                raise RadixError(f"rank {peer.rank} is not connected to this data plane")
            theirs, ours = known.remote.data_bytes, self._memory.data_bytes
            blocks = checked_blocks(theirs, ours, remote_offsets, local_offsets, lengths)
            transfer = _Transfer(known, blocks)
            if not len(blocks.lengths):
                transfer.state = "done"
                return transfer
            self._queued.append(transfer)
            self._changed.notify()
        return transfer

    def figures(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        atexit.unregister(self.close)
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._target is not None:
            self._target.close()
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            raise RadixError(f"nixl does not end within {_STOP_S:.0f} s; end the process")

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        active: list[_Transfer] = []
        moved_at = time.monotonic()
        while True:
            with self._changed:
                if not (self._queued or self._forgotten or self._closed):
                    # The longer nothing moves, the less it matters to be late.
                    age = time.monotonic() - moved_at
                    pause = min(max(age / 20, _FIRST_LOOK_S), _LAST_LOOK_S)
                    self._changed.wait(pause if active else None)
                closed = self._closed
                queued, self._queued = self._queued, []
                forgotten, self._forgotten = self._forgotten, []
            if closed:
                break
            for transfer in queued:
                self._post(transfer)
            for peer in forgotten:
                peer.leave = True
                self._remove_idle(peer)
            looked_at = [*active, *queued]
            for transfer in looked_at:
                if transfer.state == "pending":
                    self._look(transfer)
            active = [transfer for transfer in looked_at if transfer.state == "pending"]
            if queued or len(active) < len(looked_at):
                moved_at = time.monotonic()
        self._end([*active, *queued])

    def _post(self, transfer: _Transfer) -> None:
        peer = transfer.peer
        try:
            if not peer.agent:
                peer.agent = self._agent.loadRemoteMD(peer.remote.engine).decode()
            transfer.handle = self._agent.createXferReq(
                self._nixl.NIXL_READ,
                self._descriptors(self._memory.address, transfer.blocks.local, transfer.blocks),
                self._descriptors(peer.remote.address, transfer.blocks.remote, transfer.blocks),
                peer.agent,
            )
            peer.transfers += 1
            status = self._agent.postXferReq(transfer.handle)
        except Exception as error:  # the bindings' own exceptions have no common base
            self._over(transfer, error)
            return
        self._see(transfer, status)

    def _descriptors(self, base: int, offsets: npt.NDArray[np.int64], blocks: Blocks) -> Any:
        rows = np.zeros((len(offsets), 3), np.uint64)  # address, length, device
        rows[:, 0] = offsets + base
        rows[:, 1] = blocks.lengths
        return self._nixl.nixlXferDList(self._nixl.DRAM_SEG, rows)

    def _look(self, transfer: _Transfer) -> None:
        try:
            status = self._agent.getXferStatus(transfer.handle)
        except Exception as error:  # a peer that is dead, for example
            self._over(transfer, error)
            return
        self._see(transfer, status)

    def _see(self, transfer: _Transfer, status: Any) -> None:
        if status == self._nixl.NIXL_SUCCESS:
            self._over(transfer)
        elif status != self._nixl.NIXL_IN_PROG:
            self._over(transfer, RadixError(f"nixl status {status}"))

    def _over(self, transfer: _Transfer, error: Exception | None = None) -> None:
        peer = transfer.peer
        if error is not None:
            _log.info("reading from %s with nixl failed: %s", peer.agent or "a peer", error)
            peer.leave = True  # and known anew at the next read: a lost connection stays lost
        if transfer.handle:
            peer.transfers -= 1
            self._release(transfer)
        self._remove_idle(peer)
        transfer.state = "done" if error is None else "failed"

    def _release(self, transfer: _Transfer) -> None:
        try:
            self._agent.releaseXferReq(transfer.handle)
        except Exception as error:
            _log.warning("nixl does not release a transfer: %s", error)

    def _remove_idle(self, peer: _Peer) -> None:
        if not peer.leave or peer.transfers:
            return
        peer.leave = False
        name, peer.agent = peer.agent, ""
        if name:
            try:
                self._agent.invalidateRemoteMD(name)
            except Exception as error:
                _log.warning("nixl does not remove the peer %s: %s", name, error)

    def _end(self, left: list[_Transfer]) -> None:
        for transfer in left:
            if transfer.handle:
                self._release(transfer)
        self._agent = None  # the last reference: its end stops UCX, and so every read
        for transfer in left:
            transfer.state = "failed"
