# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Which server a region file belongs to: its owner holds an flock on it for as long as it lives.

The kernel drops the lock with the process. A left-over file may be deleted only while nobody holds
its lock; so a server never deletes a region of another one that happens to have the same name.
"""

from __future__ import annotations

import fcntl
import os
import weakref

from .errors import RadixError

__all__ = ["SHM_DIRECTORY", "FileLock", "region_file"]

SHM_DIRECTORY = "/dev/shm"

_live: weakref.WeakSet[FileLock] = weakref.WeakSet()


def region_file(name: str, hugepage_path: str = "") -> str:
    """The path of a region's file; `hugepage_path` "" means /dev/shm."""
    return os.path.join(hugepage_path or SHM_DIRECTORY, name.lstrip("/"))


class FileLock:
    """An flock on an existing file, held until `release`. Not inherited by forked children."""

    def __init__(self, path: str) -> None:
        """RadixError when another living process holds it; FileNotFoundError without a file."""
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO too
        except PermissionError as error:
            raise RadixError(
                f"{path} belongs to another user; choose another name or data_name"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._fd)
            self._fd = -1
            raise RadixError(
                f"{path} belongs to another living radix-server; choose another name or data_name"
            ) from error
        _live.add(self)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)  # a duplicate in a forked child was closed by the hook below
            self._fd = -1

    def __del__(self) -> None:
        self.release()


def _close_in_child() -> None:
    for lock in list(_live):
        lock.release()


os.register_at_fork(after_in_child=_close_in_child)
