# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The readers that the built-in data plane has of one peer, each with a thread."""

from __future__ import annotations

import collections
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ... import _core
from ...errors import RadixError
from .base import Blocks, TransferState

__all__ = ["READERS", "Piece", "PiecewiseTransfer", "Reader", "Readers"]

_log = logging.getLogger("radixshmem.server")

READERS = 4
_IDLE_S = 30.0  # then a thread ends, and its connection with it
_READ_TIMEOUT_MS = 30_000  # the caller's deadline is shorter; then the transfer ends late
_TRIES = 2


class PiecewiseTransfer:
    """Over when each of its pieces is."""

    def __init__(self, pieces: int) -> None:
        self._guard = threading.Lock()
        self._left = pieces
        self.error = ""

    def poll(self) -> TransferState:
        if self._left:
            return "pending"
        return "failed" if self.error else "done"

    def piece_over(self, error: str) -> None:
        with self._guard:
            self.error = self.error or error
            self._left -= 1


@dataclass
class Piece:
    """A part of a transfer that one reader reads at once."""

    transfer: PiecewiseTransfer
    blocks: Blocks
    tries: int = 0


@dataclass
class Reader:
    """`stream` is another descriptor of its connection, if it has one: to break a read off."""

    slots: _core.PeerSlots
    stream: socket.socket | None

    def broke(self, error: str) -> None:
        """A read has failed; the reader is closed next."""

    def superseded(self) -> bool:
        """Whether another one should be made instead."""
        return False

    def break_off(self) -> None:
        if self.stream is not None:
            with contextlib.suppress(OSError):
                self.stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()


class Readers:
    """Made as pieces come, up to a few; gone when there are none for a while."""

    def __init__(
        self,
        name: str,
        memory: memoryview,
        open_reader: Callable[[], Reader],
        limit: int = READERS,
    ) -> None:
        """`open_reader` is called in threads of this object; `memory` is where blocks go."""
        self._name = name
        self._memory = memory
        self._open = open_reader
        self._limit = limit
        self._changed = threading.Condition()  # guards the others
        self._pieces: collections.deque[Piece] = collections.deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._readers: dict[int, Reader] = {}  # by thread
        self._ended = False

    @property
    def alive(self) -> bool:
        return bool(self._threads)

    def take(self, pieces: Sequence[Piece]) -> None:
        """Read them. RadixError after `end`."""
        with self._changed:
            if self._ended:
                raise RadixError(f"{self._name}: the peer was forgotten meanwhile")
            self._pieces.extend(pieces)
            missing = len(self._pieces) - self._idle
            for _ in range(min(missing, self._limit - len(self._threads))):
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._threads.add(thread)
                thread.start()
            self._changed.notify(len(pieces))

    def end(self) -> None:
        """What is not read yet fails; the threads end soon."""
        with self._changed:
            self._ended = True
            left, self._pieces = list(self._pieces), collections.deque()
            for reader in self._readers.values():
                reader.break_off()
            self._changed.notify_all()
        for piece in left:
            piece.transfer.piece_over("the peer was forgotten")

    def join(self) -> None:
        """Until nothing is written into the memory any more. Requires: `end`."""
        for thread in list(self._threads):
            thread.join()

    # ------------------------------------------------------------ a thread

    def _run(self) -> None:
        try:
            while (piece := self._next()) is not None:
                error = "" if piece.transfer.error else self._read(piece)
                if error:
                    _log.info("%s: a reader is dropped: %s", self._name, error)
                    self._drop(error)
                    if self._again(piece):
                        continue
                piece.transfer.piece_over(error)
        finally:
            self._drop()
            with self._changed:
                self._threads.discard(threading.current_thread())

    def _next(self) -> Piece | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._pieces or self._ended, _IDLE_S)
            self._idle -= 1
            if self._pieces:
                return self._pieces.popleft()
            self._threads.discard(threading.current_thread())  # `take` must not count on it
            return None

    def _read(self, piece: Piece) -> str:
        """Why it was not read; empty: it was."""
        try:
            reader = self._reader()
            remote, local, lengths = (words.astype(np.uint64) for words in piece.blocks)
            reader.slots.read(self._memory, remote, local, lengths, _READ_TIMEOUT_MS)
        except TimeoutError as error:
            piece.tries = _TRIES  # another reader would wait as long
            return str(error)
        except Exception as error:
            return str(error) or type(error).__name__
        return ""

    def _reader(self) -> Reader:
        me = threading.get_ident()
        reader = self._readers.get(me)
        if reader is not None and reader.superseded():
            self._drop()
            reader = None
        if reader is None:
            reader = self._open()
            with self._changed:
                self._readers[me] = reader
                if self._ended:
                    reader.break_off()
        return reader

    def _drop(self, error: str = "") -> None:
        with self._changed:
            reader = self._readers.pop(threading.get_ident(), None)
        if reader is not None:
            if error:
                reader.broke(error)
            reader.close()

    def _again(self, piece: Piece) -> bool:
        """Give the piece to whoever is next, unless it was tried enough."""
        with self._changed:
            piece.tries += 1
            if piece.tries >= _TRIES or self._ended:
                return False
            self._pieces.append(piece)
            self._changed.notify()
            return True
