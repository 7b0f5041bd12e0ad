# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the scheduler and its workers tell each other about slots."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.kv_offload.base import LoadStoreSpec

from radixshmem import RadixClient

__all__ = ["SlotSpec", "WorkerMetadata", "life_of"]


def life_of(client: RadixClient) -> int:
    """The nonce of the store that the client has attached to; 0: none."""
    store = client.store
    return store.nonce if store is not None else 0


class SlotSpec(LoadStoreSpec):
    """The slots of one transfer, one per key in the order of the keys.

    `life` names the store they are of (its nonce): slot ids of a server that was replaced mean
    nothing to the next one. `request` is the one whose blocks they are.
    """

    __slots__ = ("life", "request", "slots")

    def __init__(self, slots: npt.NDArray[np.int32], life: int, request: str) -> None:
        self.slots = slots
        self.life = life
        self.request = request

    @classmethod
    def void(cls, count: int, request: str) -> SlotSpec:
        """A transfer that is to fail: its slots are gone."""
        return cls(np.full(count, -1, np.int32), 0, request)

    def __repr__(self) -> str:
        return f"SlotSpec({len(self.slots)} slots)"


@dataclass
class WorkerMetadata(OffloadingWorkerMetadata):
    """vLLM's report of finished jobs, and which slots some rank could not write.

    A rank may still be writing those that are late: they must not be used before they have ended.
    """

    failed_slots: set[tuple[int, int]] = field(default_factory=set)  # (component, slot)
    late_slots: set[tuple[int, int, int]] = field(default_factory=set)  # (rank, component, slot)
    ended_slots: set[tuple[int, int, int]] = field(default_factory=set)  # late ones of before

    @classmethod
    def extend(
        cls,
        meta: OffloadingWorkerMetadata,
        failed: set[tuple[int, int]],
        late: Set[tuple[int, int, int]] = frozenset(),
        ended: Set[tuple[int, int, int]] = frozenset(),
    ) -> WorkerMetadata:
        return cls(
            **_values(meta), failed_slots=failed, late_slots=set(late), ended_slots=set(ended)
        )

    def aggregate(self, other: Any) -> WorkerMetadata:
        merged = super().aggregate(other)
        assert isinstance(merged, OffloadingWorkerMetadata)
        return type(self).extend(
            merged,
            self.failed_slots | getattr(other, "failed_slots", set()),
            self.late_slots | getattr(other, "late_slots", set()),
            self.ended_slots | getattr(other, "ended_slots", set()),
        )


def _values(meta: OffloadingWorkerMetadata) -> dict[str, Any]:
    """The fields that the base class has in this version of vLLM."""
    return {f.name: getattr(meta, f.name) for f in fields(OffloadingWorkerMetadata)}
