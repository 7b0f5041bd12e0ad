# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Calls that a real engine made to the manager: recording them, and making them again.

One JSON object a line. `call` is a method of RadixShmemManager, `request` the request's number,
`keys` are [group, first block, end] ranges of its path, `answer` what the manager said. Hashes are
numbered: equal numbers, equal blocks. Lines that are no call:

    scenario   a name for what follows
    path       the live list of hashes of that request is its first `keep`, and then `add`

Made by `record_calls.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm.v1.kv_offload.base import PrepareStoreOutput, ReqContext, ScheduleEndContext

from radixshmem.integrations.vllm_offload.manager import RadixShmemManager

Line = dict[str, Any]
Ranges = list[list[int]]

_WITH_KEYS = ("prepare_load", "complete_load", "prepare_store", "complete_store")


def read(file: Path) -> list[Line]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write(file: Path, lines: Iterable[Line]) -> None:
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    file.write_text(text, encoding="utf-8")


# ---------------------------------------------------------------- recording


class Recorder:
    """Wraps the methods of one manager; `lines` is what it was asked and what it answered."""

    def __init__(self, manager: RadixShmemManager) -> None:
        self.lines: list[Line] = []
        self._manager = manager
        self._numbers: dict[str, int] = {}  # of requests
        self._names: dict[bytes, int] = {}  # of hashes
        self._live: dict[int, Sequence[bytes]] = {}
        self._known: dict[int, list[bytes]] = {}

    def scenario(self, name: str) -> None:
        self.lines.append({"scenario": name})

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        manager = self._manager
        wrapped = {
            "offer": self._offer,
            "begin_round": self._begin_round,
            "end_request": self._end_request,
            "note_failures": self._note_failures,
            "reset_cache": self._plain("reset_cache"),
            "on_schedule_end": self._on_schedule_end,
            "on_new_request": self._of_context("on_new_request"),
            "on_request_finished": self._of_context("on_request_finished"),
            "lookup": self._lookup,
            **{name: self._with_keys(name) for name in _WITH_KEYS},
        }
        for name, method in wrapped.items():
            setattr(manager, name, method)
        try:
            yield self
        finally:
            for name in wrapped:
                delattr(manager, name)

    def _add(self, call: str, request_id: str | None = None, **more: Any) -> None:
        line: Line = {"call": call}
        if request_id is not None:
            number = self._numbers.setdefault(request_id, len(self._numbers))
            self._follow(number)
            line["request"] = number
        self.lines.append(line | more)

    def _follow(self, number: int) -> None:
        """Tell how the request's path has changed."""
        live, known = list(self._live.get(number, ())), self._known.setdefault(number, [])
        keep = 0
        while keep < min(len(live), len(known)) and live[keep] == known[keep]:
            keep += 1
        if keep == len(live) == len(known):
            return
        names = [self._names.setdefault(h, len(self._names)) for h in live[keep:]]
        self.lines.append({"path": number, "keep": keep, "add": names})
        self._known[number] = live

    def _ranges(self, request_id: str, keys: Collection[bytes]) -> Ranges:
        number = self._numbers[request_id]
        self._follow(number)
        places = [
            (int.from_bytes(key[-4:], "big"), self._known[number].index(key[:-4])) for key in keys
        ]
        ranges: Ranges = []
        for group, block in places if isinstance(keys, (list, tuple)) else sorted(places):
            if ranges and ranges[-1][0] == group and ranges[-1][2] == block:
                ranges[-1][2] += 1
            else:
                ranges.append([group, block, block + 1])
        return ranges

    def _original(self, name: str) -> Callable[..., Any]:
        method = getattr(type(self._manager), name)
        return lambda *args, **kwargs: method(self._manager, *args, **kwargs)

    def _offer(self, request_id: str, hashes: Sequence[bytes]) -> None:
        number = self._numbers[request_id] = len(self._numbers)
        self._live[number] = hashes
        self._add("offer", request_id)
        self._original("offer")(request_id, hashes)

    def _begin_round(self, request_id: str, num_tokens: int) -> None:
        self._add("begin_round", request_id, tokens=num_tokens)
        self._original("begin_round")(request_id, num_tokens)

    def _end_request(self, request_id: str) -> None:
        self._add("end_request", request_id)
        self._original("end_request")(request_id)

    def _note_failures(self, slots: Any, requests: Any) -> None:
        if slots or requests:
            stores = [
                [component, self._names[pending.block_hash]]
                for (component, _), pending in self._manager.stores._pending.items()
                if (component, pending.slot) in slots
            ]
            loads = sorted(self._numbers[request_id] for request_id in requests)
            self._add("note_failures", stores=stores, loads=loads)
        self._original("note_failures")(slots, requests)

    def _plain(self, name: str) -> Callable[[], Any]:
        def call() -> Any:
            self._add(name)
            return self._original(name)()

        return call

    def _on_schedule_end(self, context: ScheduleEndContext) -> None:
        preempted = [self._numbers[r] for r in context.preempted_req_ids]
        self._add("on_schedule_end", **({"preempted": preempted} if preempted else {}))
        self._original("on_schedule_end")(context)

    def _of_context(self, name: str) -> Callable[[ReqContext], Any]:
        def call(context: ReqContext) -> Any:
            self._add(name, context.req_id)
            return self._original(name)(context)

        return call

    def _lookup(self, key: bytes, context: ReqContext) -> Any:
        answer = self._original("lookup")(key, context)
        [[group, block, _]] = self._ranges(context.req_id, [key])
        self._add("lookup", context.req_id, group=group, block=block, answer=answer.name)
        return answer

    def _with_keys(self, name: str) -> Callable[..., Any]:
        def call(keys: Collection[bytes], context: ReqContext, *args: Any) -> Any:
            answer = self._original(name)(keys, context, *args)
            more = {}
            if isinstance(answer, PrepareStoreOutput):
                more["answer"] = self._ranges(context.req_id, answer.keys_to_store)
            self._add(name, context.req_id, keys=self._ranges(context.req_id, keys), **more)
            return answer

        return call
