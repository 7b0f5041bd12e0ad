# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Slots that workers may still read or write although vLLM has forgotten the transfer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vllm.v1.kv_offload import base

from radixshmem import PullResult, QueryResult

__all__ = ["Found", "Quarantine", "Slot"]

Found = QueryResult | PullResult
Slot = tuple[int, int]  # (component, slot)


@dataclass(slots=True, eq=False)
class _Reset:
    """What was in flight at a reset."""

    steps: int  # that vLLM has to plan before all workers have heard of it and stopped
    slots: list[Slot]
    pins: list[Found]


class Quarantine:
    """Says which slots may be recycled. Used by the scheduler's thread alone."""

    def __init__(self, steps_in_flight: int) -> None:
        """vLLM plans so many steps at most before it has heard of the first of them."""
        # The first step after a reset tells the workers; then that one has to be heard of.
        self._steps = 1 + steps_in_flight
        self.resets: list[_Reset] = []  # steps of the engine are needed to end these
        # From 0.33 on vLLM tells when a reset has reached the workers; before, steps are counted.
        self.told_of_flush = hasattr(base.OffloadingManager, "on_reset_flushed")
        self._late: set[tuple[int, int, int]] = set()  # (rank, component, slot)
        self._withheld: set[Slot] = set()  # to recycle when they are not late any more

    @property
    def empty(self) -> bool:
        return not self.resets and not self._late and not self._withheld

    @property
    def withheld(self) -> int:
        """Slots that are kept from everybody while a GPU may write them."""
        return len(self._withheld)

    def reset(self, slots: list[Slot], pins: list[Found]) -> None:
        """Workers may go on with these until they have been told to stop."""
        if slots or pins:
            self.resets.append(_Reset(self._steps, slots, pins))

    def note_step(self) -> list[Slot]:
        """vLLM plans one more step. Returns: slots that come free."""
        if not self.resets or self.told_of_flush:
            return []
        for each in self.resets:
            each.steps -= 1
        return self._end([each for each in self.resets if each.steps <= 0])

    def note_flush(self) -> list[Slot]:
        """The workers have stopped with all of before the last reset."""
        return self._end(list(self.resets))

    def _end(self, ended: list[_Reset]) -> list[Slot]:
        self.resets = [each for each in self.resets if each not in ended]
        for each in ended:
            for found in each.pins:
                found.finalize()
        return [slot for each in ended for slot in each.slots]

    def note_late(
        self, late: Iterable[tuple[int, int, int]], ended: Iterable[tuple[int, int, int]]
    ) -> list[Slot]:
        """(rank, component, slot) of failed stores that a GPU may still be writing, and of those
        of before that have ended. Returns: slots that come free."""
        self._late.update(late)
        self._late.difference_update(ended)
        if not self._withheld:
            return []
        ready = self._withheld - self._late_slots()
        self._withheld -= ready
        return list(ready)

    def withhold_late(self, slots: Iterable[Slot]) -> list[Slot]:
        """Returns: those that nobody writes any more; the others come free later."""
        given, late = list(slots), self._late_slots()
        self._withheld |= late.intersection(given)
        return [slot for slot in given if slot not in late]

    def _late_slots(self) -> set[Slot]:
        return {(component, slot) for _, component, slot in self._late}

    def forget(self) -> None:
        """The server has gone: its slots are void."""
        self._end(list(self.resets))
        self._late.clear()
        self._withheld.clear()
