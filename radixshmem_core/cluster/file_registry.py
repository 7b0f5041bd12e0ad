# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The registry of one machine: a directory.

    <path>/<cluster id>/lock            held (flock) while anything is changed
                        state.json      ranks by node name, epochs
                        members/<node>  a Member; its server holds a lock on the file

A member lives as long as the open-file-description lock on its record: the kernel releases it when
the process dies, in whatever PID namespace. A record appears by a rename, already locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import RadixError
from .registry import (
    EpochFloor,
    Member,
    RankOwner,
    RegistryUnavailable,
    check_registry_name,
    choose_rank,
    name_taken,
    note_rank,
)

__all__ = ["FileRegistry"]

_log = logging.getLogger("radixshmem.cluster")

_LOCK_TIMEOUT_S = 5.0
_POLL_S = 0.01
_LOOK_S = 0.2  # between two looks of wait_change
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux; the whole file from 0 on
_TEMPORARY = "."  # how the names of unfinished files start


class _State(msgspec.Struct, kw_only=True):
    ranks: dict[int, RankOwner] = {}
    joins: int = 0
    epochs: dict[str, int] = {}


class FileRegistry:
    """A `Registry` in a directory of this machine."""

    def __init__(self, directory: str, cluster_id: str) -> None:
        self._path = Path(directory) / cluster_id
        self._members = self._path / "members"
        self._record = -1  # descriptor of this server's own record
        self._node = ""
        self._last_rank: int | None = None
        self._floor = EpochFloor()
        self._listed: object = None
        self._guard = threading.RLock()
        self._closing = threading.Event()
        try:
            self._members.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RadixError(
                f"cannot make the registry directory {self._members} ({error.strerror}); create "
                "it for this user, or give another with --registry file:///path"
            ) from error
        _open_registries.add(self)

    def join(self, node: str, instance: int, address: str, port: int) -> Member:
        check_registry_name("node_name", node)
        with self._guard, self._changing() as state:
            holder = self._living(node)
            if holder is not None and holder.instance != instance:
                raise name_taken(holder)
            self._drop_record()
            others = {m.rank for m in self._all_living() if m.node != node}
            rank = choose_rank(node, state.ranks, others, self._last_rank)
            state.joins += 1
            state.ranks[rank] = RankOwner(node, state.joins)
            self._store(state)
            member = Member(
                node=node,
                rank=rank,
                instance=instance,
                address=address,
                port=port,
                joined_s=time.time(),
            )
            self._record = self._publish(member)
            note_rank(node, self._last_rank, rank)
            self._node, self._last_rank = node, rank
            return member

    def renew(self) -> bool:
        with self._guard:
            if self._record < 0:
                return False
            try:
                there = os.stat(self._members / self._node)
            except FileNotFoundError:
                return False
            except OSError as error:
                raise self._unavailable(error) from error
            return os.path.samestat(there, os.fstat(self._record))

    def members(self) -> list[Member]:
        return self.members_and_epochs()[0]

    def members_and_epochs(self) -> tuple[list[Member], dict[str, int]]:
        self._listed = self._signature()
        return self._all_living(), self._epochs()

    def epoch(self, key: str) -> int:
        return self._epochs().get(key, 0)

    def raise_epoch(self, key: str, above: int = 0) -> int:
        self._floor.raise_to({key: above})
        with self._guard, self._changing() as state:
            state.epochs = self._floor.raise_to(state.epochs)
            state.epochs[key] = state.epochs.get(key, 0) + 1
            self._store(state)
            return self._floor.raise_to(state.epochs)[key]

    def wait_change(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self._signature() == self._listed:
            left = deadline - time.monotonic()
            if left <= 0 or self._closing.wait(min(left, _LOOK_S)):
                return False
        return True

    def leave(self) -> None:
        with self._guard, self._changing():
            self._drop_record()

    def close(self) -> None:
        self._closing.set()
        with self._guard:
            self._close_record()

    # ------------------------------------------------------------ records

    def _publish(self, member: Member) -> int:
        """A descriptor that holds the lock on the record; the record is visible with it."""
        temporary = self._members / f"{_TEMPORARY}{member.node}"
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _lock(descriptor)
            os.write(descriptor, msgspec.json.encode(member))
            os.rename(temporary, self._members / member.node)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _drop_record(self) -> None:
        """Remove this server's record, if it is still there, and let go of it."""
        if self._record >= 0:
            with contextlib.suppress(FileNotFoundError):
                there = os.stat(self._members / self._node)
                if os.path.samestat(there, os.fstat(self._record)):
                    os.unlink(self._members / self._node)
            self._close_record()

    def _close_record(self) -> None:
        descriptor, self._record = self._record, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _living(self, node: str) -> Member | None:
        """The living member of that name. Records of the dead and of other formats are nobody."""
        try:
            with self._opened(node) as descriptor:
                locked = _is_locked(descriptor)
                return (
                    msgspec.json.decode(os.read(descriptor, 65536), type=Member) if locked else None
                )
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    @contextlib.contextmanager
    def _opened(self, node: str) -> Iterator[int]:
        try:
            descriptor = os.open(self._members / node, os.O_RDONLY | os.O_NONBLOCK)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unavailable(error) from error

    def _all_living(self) -> list[Member]:
        found = [self._living(node) for node in self._names()]
        return sorted((m for m in found if m is not None), key=lambda member: member.rank)

    def _names(self) -> list[str]:
        try:
            return [n for n in os.listdir(self._members) if not n.startswith(_TEMPORARY)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unavailable(error) from error

    def _signature(self) -> object:
        """Equal to an earlier one if nobody joined, left, died or raised an epoch since."""
        living = set()
        for node in self._names():
            with contextlib.suppress(FileNotFoundError), self._opened(node) as descriptor:
                if _is_locked(descriptor):
                    living.add((node, os.fstat(descriptor).st_ino))
        try:
            return living, os.stat(self._path / "state.json").st_mtime_ns
        except FileNotFoundError:
            return living, 0
        except OSError as error:
            raise self._unavailable(error) from error

    # ------------------------------------------------------------ state

    def _epochs(self) -> dict[str, int]:
        stored = self._load().epochs
        highest = self._floor.raise_to(stored)
        if highest != stored:
            with self._guard, self._changing() as state:
                state.epochs = self._floor.raise_to(state.epochs)
                self._store(state)
        return highest

    def _load(self) -> _State:
        try:
            return msgspec.json.decode((self._path / "state.json").read_bytes(), type=_State)
        except FileNotFoundError:
            return _State()
        except msgspec.MsgspecError as error:  # as if it had been removed
            _log.warning("%s/state.json is no state (%s); it is made anew", self._path, error)
            return _State()
        except OSError as error:
            raise self._unavailable(error) from error

    def _store(self, state: _State) -> None:
        temporary = self._path / f"{_TEMPORARY}state.json"
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(state))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, self._path / "state.json")

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_State]:
        """The state, with everybody else kept out."""
        try:
            self._members.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
            descriptor = os.open(self._path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise self._unavailable(error) from error
        try:
            self._wait_for_lock(descriptor)
            yield self._load()
        except OSError as error:
            raise self._unavailable(error) from error
        finally:
            os.close(descriptor)

    def _wait_for_lock(self, descriptor: int) -> None:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RegistryUnavailable(
                        f"the registry lock {self._path / 'lock'} was not free within "
                        f"{_LOCK_TIMEOUT_S:g} s; see with `fuser` who holds it: is it stopped?"
                    ) from None
                time.sleep(_POLL_S)

    def _unavailable(self, error: Exception) -> RegistryUnavailable:
        return RegistryUnavailable(
            f"the registry directory {self._path} cannot be used ({error}); check that it is "
            "there, that this user may write it, and that its disk has room"
        )


def _lock(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


def _is_locked(descriptor: int) -> bool:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


_open_registries: weakref.WeakSet[FileRegistry] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A forked child must not keep its parent's record alive."""
    for registry in list(_open_registries):
        registry._close_record()


os.register_at_fork(after_in_child=_after_fork_in_child)
