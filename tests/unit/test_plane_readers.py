# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The readers of the built-in data plane share the pieces of a transfer, and may break."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from e2e.harness import eventually

from radixshmem_core.cluster.planes import builtin
from radixshmem_core.cluster.planes.base import Blocks
from radixshmem_core.cluster.planes.readers import Piece, PiecewiseTransfer, Reader, Readers
from radixshmem_core.errors import RadixError

DEADLINE_S = 20
Read = Callable[..., None]


class Slots:
    """Stands for _core.PeerSlots."""

    def __init__(self, read: Read) -> None:
        self.read = read


def readers(read: Read, opened: list[int], stream: socket.socket | None = None) -> Readers:
    def open_reader() -> Reader:
        opened.append(1)
        return Reader(Slots(read), stream)  # type: ignore[arg-type]

    return Readers("test readers", memoryview(bytearray(8)), open_reader)


def pieces(count: int) -> tuple[PiecewiseTransfer, list[Piece]]:
    transfer = PiecewiseTransfer(count)
    one = np.ones(1, np.int64)
    return transfer, [Piece(transfer, Blocks(one * i, one * i, one)) for i in range(count)]


def finish(transfer: PiecewiseTransfer) -> str:
    eventually(lambda: transfer.poll() != "pending", "the transfer is over", DEADLINE_S)
    return transfer.poll()


def test_a_large_transfer_flows_over_several_readers_at_once() -> None:
    together = threading.Barrier(4)
    opened: list[int] = []
    running = readers(lambda *_: together.wait(DEADLINE_S) and None, opened)
    transfer, work = pieces(8)
    running.take(work)
    assert (finish(transfer), len(opened)) == ("done", 4)
    running.end()
    running.join()
    assert not running.alive


def test_a_reader_that_breaks_is_dropped_and_its_piece_read_by_another() -> None:
    calls = itertools.count()
    read_blocks: list[int] = []

    def read(memory: Any, remote: Any, *_: Any) -> None:
        if next(calls) == 0:
            raise RadixError("broke off")
        read_blocks.extend(remote.tolist())

    opened: list[int] = []
    running = readers(read, opened)
    transfer, work = pieces(1)
    running.take(work)
    assert (finish(transfer), read_blocks, len(opened)) == ("done", [0], 2)
    running.end()
    running.join()


def test_a_transfer_that_always_breaks_fails_and_the_next_one_is_tried() -> None:
    broken = threading.Event()
    broken.set()

    def read(*_: Any) -> None:
        if broken.is_set():
            raise RadixError("broke off")

    running = readers(read, [])
    transfer, work = pieces(6)
    running.take(work)
    assert (finish(transfer), transfer.error) == ("failed", "broke off")
    broken.clear()
    transfer, work = pieces(6)
    running.take(work)
    assert finish(transfer) == "done"
    running.end()
    running.join()


def test_a_transfer_is_pending_while_any_piece_is_read() -> None:
    """One piece has failed; another may still write into its slots."""
    go_on = threading.Event()
    failed = threading.Event()

    def read(memory: Any, remote: Any, *_: Any) -> None:
        if remote[0] == 0:
            assert go_on.wait(DEADLINE_S)
        else:
            failed.set()
            raise TimeoutError("late")

    running = readers(read, [])
    transfer, work = pieces(2)
    running.take(work)
    assert failed.wait(DEADLINE_S)
    eventually(lambda: transfer.error, "a piece has failed", DEADLINE_S)
    assert transfer.poll() == "pending"
    go_on.set()
    assert finish(transfer) == "failed"
    running.end()
    running.join()


def test_the_end_breaks_off_what_is_read_and_fails_what_waits() -> None:
    ours, theirs = socket.socketpair()
    begun = threading.Barrier(5)

    def read(*_: Any) -> None:
        begun.wait(DEADLINE_S)
        theirs.recv(1)  # until it is shut down
        raise RadixError("broke off")

    running = readers(read, [], ours)
    transfer, work = pieces(6)
    running.take(work)
    begun.wait(DEADLINE_S)
    running.end()
    running.join()
    assert transfer.poll() == "failed"
    with pytest.raises(RadixError, match="forgotten"):
        running.take(pieces(1)[1])
    theirs.close()


@pytest.mark.parametrize("lengths", [[1], [5 << 20, 1, 3 << 20, 4 << 20], [65 << 20, 7], [10] * 9])
def test_pieces_are_the_whole_transfer(lengths: list[int]) -> None:
    sizes = np.array(lengths, np.int64)
    begin = np.cumsum(sizes) - sizes
    covered = 0
    for remote, local, length in builtin._cut(Blocks(begin + 100, begin, sizes)):
        assert (remote - local == 100).all()
        assert length.max() <= 32 << 20
        assert len(length) == 1 or length.sum() <= 4 << 20
        for at, size in zip(local.tolist(), length.tolist(), strict=True):
            assert at == covered
            covered += size
    assert covered == sizes.sum()


def test_nothing_to_read_is_done() -> None:
    assert list(builtin._cut(Blocks(*[np.empty(0, np.int64)] * 3))) == []
    assert PiecewiseTransfer(0).poll() == "done"
