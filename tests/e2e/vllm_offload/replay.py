# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Makes recorded calls (recorded.py) to a manager without an engine, and compares the answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from e2e.vllm_offload.recorded import Line, Ranges
from e2e.vllm_offload.slot_bytes import Workers
from vllm.v1.kv_offload.base import ReqContext, ScheduleEndContext

from radixshmem.integrations.vllm_offload.manager import RadixShmemManager
from radixshmem.integrations.vllm_offload.transfer import SlotSpec

_WITHIN_STEP = ("prepare_store", "on_request_finished")


def end_last(lines: list[Line]) -> Iterator[Line]:
    """The order of vLLM 0.33: `on_schedule_end` is the last call of a step's planning."""
    waiting: list[Line] = []
    for line in lines:
        if waiting and "path" not in line and line.get("call") not in _WITHIN_STEP:
            yield from waiting
            waiting = []
        if line.get("call") == "on_schedule_end":
            waiting.append(line)
        else:
            yield line
    yield from waiting


class Replay:
    def __init__(self, manager: RadixShmemManager, workers: Workers) -> None:
        self._manager = manager
        self._workers = workers
        self._live: dict[int, list[bytes]] = {}
        self._contexts: dict[int, ReqContext] = {}
        self._loads: dict[int, tuple[list[bytes], SlotSpec]] = {}
        self._slots: dict[bytes, tuple[int, int]] = {}  # of keys being stored: slot, life
        self._bad_stores: set[tuple[int, bytes]] = set()  # component, hash
        self._bad_loads: set[int] = set()
        self.hits = 0  # lookups

    def run(self, lines: Iterator[Line] | list[Line]) -> None:
        where = ""
        for number, line in enumerate(lines):
            where = line.get("scenario", where)
            try:
                self._make(line)
            except AssertionError as error:
                raise AssertionError(f"line {number}, {where}: {line}") from error

    def next_step(self, request: int) -> None:
        """What vLLM would tell of the last request that ended, if there were one more step."""
        self._manager.on_request_finished(self._context(request))

    def _make(self, line: Line) -> None:
        if "path" in line:
            live = self._live.setdefault(line["path"], [])
            live[line["keep"] :] = [_hash(name) for name in line["add"]]
        elif "call" in line:
            method = getattr(self, f"_{line['call']}", None)
            if method is not None:
                method(line)
            elif "request" in line:
                getattr(self._manager, line["call"])(self._context(line["request"]))
            else:
                getattr(self._manager, line["call"])()

    def _context(self, number: int) -> ReqContext:
        return self._contexts.setdefault(number, ReqContext(req_id=str(number)))

    def _keys(self, number: int, ranges: Ranges) -> list[bytes]:
        live = self._live[number]
        return [
            live[i] + group.to_bytes(4, "big")
            for group, begin, end in ranges
            for i in range(begin, end)
        ]

    def _offer(self, line: Line) -> None:
        number = line["request"]
        self._manager.offer(str(number), self._live.setdefault(number, []))

    def _begin_round(self, line: Line) -> None:
        self._manager.begin_round(str(line["request"]), line["tokens"])

    def _end_request(self, line: Line) -> None:
        self._manager.end_request(str(line["request"]))

    def _on_schedule_end(self, line: Line) -> None:
        preempted = [str(number) for number in line.get("preempted", [])]
        self._manager.on_schedule_end(ScheduleEndContext([], preempted))

    def _note_failures(self, line: Line) -> None:
        self._bad_stores = {(component, _hash(name)) for component, name in line["stores"]}
        self._bad_loads = set(line["loads"])
        slots = {(c, self._manager.stores._pending[c, h].slot) for c, h in self._bad_stores}
        self._manager.note_failures(slots, {str(number) for number in self._bad_loads})

    def _lookup(self, line: Line) -> None:
        block = line["block"]
        [key] = self._keys(line["request"], [[line["group"], block, block + 1]])
        answer = self._manager.lookup(key, self._context(line["request"]))
        assert answer.name == line["answer"], answer
        self.hits += answer.name == "HIT"

    def _prepare_load(self, line: Line) -> None:
        keys = self._keys(line["request"], line["keys"])
        spec = self._manager.prepare_load(keys, self._context(line["request"]))
        assert isinstance(spec, SlotSpec)
        self._loads[line["request"]] = keys, spec

    def _complete_load(self, line: Line) -> None:
        number = line["request"]
        keys, spec = self._loads.pop(number)
        assert set(keys) == set(self._keys(number, line["keys"]))
        assert number in self._bad_loads or self._workers.load(keys, spec)
        self._manager.complete_load(set(keys), self._context(number))

    def _prepare_store(self, line: Line) -> None:
        number = line["request"]
        output = self._manager.prepare_store(
            self._keys(number, line["keys"]), self._context(number)
        )
        assert output is not None
        assert output.keys_to_store == self._keys(number, line["answer"])
        spec: Any = output.store_spec
        for key, slot in zip(output.keys_to_store, spec.slots.tolist(), strict=True):
            self._slots[key] = slot, spec.life

    def _complete_store(self, line: Line) -> None:
        keys = self._keys(line["request"], line["keys"])
        for key in keys:
            slot, life = self._slots.pop(key)
            if not any(key[:-4] == block_hash for _, block_hash in self._bad_stores):
                assert self._workers.store([key], SlotSpec(_one(slot), life, ""))
        self._manager.complete_store(set(keys), self._context(line["request"]))


def _hash(name: int) -> bytes:
    return hashlib.sha256(str(name).encode()).digest()


def _one(slot: int) -> npt.NDArray[np.int32]:
    return np.array([slot], np.int32)
