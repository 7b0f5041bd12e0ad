# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What a worker copies, the interface of what copies it, and copies within host memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from radixshmem import RadixError, SlotStore

__all__ = ["Copier", "HostCopier", "Outcome", "Part", "Transfer"]


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks of one KV cache group and their slots.

    Each block has k fragments in the KV cache; in its slot they lie one after the other from
    `offset` on.
    """

    kind: int  # component
    slots: npt.NDArray[np.int32]  # n
    addresses: npt.NDArray[np.uint64]  # n x k, row by row
    sizes: npt.NDArray[np.uint64]  # k, the same for each block
    offset: int

    def __getitem__(self, rows: slice | npt.NDArray[np.bool_]) -> Part:
        """Some of the blocks."""
        addresses = self.addresses.reshape(len(self.slots), len(self.sizes))[rows].reshape(-1)
        return Part(self.kind, self.slots[rows], addresses, self.sizes, self.offset)

    @property
    def slot_bytes(self) -> int:
        """What is copied of each slot."""
        return int(self.sizes.sum())


@dataclass(slots=True)
class Transfer:
    """One job of vLLM: a store copies into slots, a load out of them."""

    job_id: int
    is_store: bool
    store: SlotStore
    parts: list[Part]
    request: str  # whose blocks they are

    def copy(self, part: Part) -> int:
        """Copy a part by the CPU. Returns: bytes. RadixError, IndexError, ValueError."""
        move = self.store.copy_in if self.is_store else self.store.copy_out
        return move(part.slots, part.addresses, part.sizes, kind=part.kind, offset=part.offset)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transfer went. One that was given up at its deadline may not have `ended`: a GPU may
    still copy from or to its slots, until its job is among `Copier.take_ended`."""

    transfer: Transfer
    error: str | None
    bytes: int
    seconds: float
    ended: bool = True


class Copier(Protocol):
    """Copies between KV cache and slots. Used by one thread."""

    def attach(self, store: SlotStore) -> None:
        """Transfers are going to be from and to this store."""

    def start(self, transfer: Transfer) -> None:
        """Begin it, or take note of its failure."""

    def finished(self) -> list[Outcome]:
        """Each transfer once, when it is over. Does not wait."""

    def take_ended(self) -> list[Transfer]:
        """Transfers that were given up before, and have ended now."""

    def wait(self, job_ids: set[int]) -> None:
        """Until these are over, but not beyond their deadlines."""

    def drain(self) -> bool:
        """Wait for all; False when some have not ended at their deadlines."""


class HostCopier:
    """For KV caches in host memory: a transfer is over when `start` returns."""

    def __init__(self) -> None:
        self._finished: list[Outcome] = []

    def attach(self, store: SlotStore) -> None:
        """Nothing to prepare."""

    def start(self, transfer: Transfer) -> None:
        begin = time.perf_counter()
        copied = 0
        failure = None
        try:
            for part in transfer.parts:
                copied += transfer.copy(part)
        except (RadixError, IndexError, ValueError) as error:
            failure = str(error)
        took = time.perf_counter() - begin
        self._finished.append(Outcome(transfer, failure, copied, took))

    def finished(self) -> list[Outcome]:
        finished, self._finished = self._finished, []
        return finished

    def take_ended(self) -> list[Transfer]:
        return []

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is left to wait for."""

    def drain(self) -> bool:
        return True
