# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Request traces: which prompt came when, as a path of block ids.

Two published schemas are read, one JSON object a line, and told apart by their fields:

- Mooncake: ``timestamp`` in milliseconds, ``input_length``, ``output_length``, ``hash_ids`` of
  512-token blocks;
- Qwen/Bailian: also ``chat_id``, ``parent_chat_id``, ``type``, ``turn``; ``timestamp`` in seconds,
  ``hash_ids`` of 16-token blocks.

`conversations` makes a trace without a file: many chats that share one system prompt, each turn
sending the whole history again.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "MOONCAKE_BLOCK_TOKENS",
    "QWEN_BLOCK_TOKENS",
    "Trace",
    "TraceSource",
    "conversations",
    "load_trace",
]

MOONCAKE_BLOCK_TOKENS = 512
QWEN_BLOCK_TOKENS = 16

_DEFAULT_REQUESTS = 3000
_SYSTEM_BLOCKS = 32
_TURN_BLOCKS = (4, 24)  # a question and its answer, half-open
_TURNS = (2, 10)
_OPEN_CHATS = 64
_THINK_MS = 20_000.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival; request i asks for ids[offsets[i]:offsets[i + 1]]."""

    name: str
    block_tokens: int
    ids: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    times_ms: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.times_ms)

    @property
    def references(self) -> int:
        """Blocks asked for, over all requests."""
        return len(self.ids)

    def path(self, request: int) -> npt.NDArray[np.int64]:
        """The block ids of one request, from the root."""
        return self.ids[self.offsets[request] : self.offsets[request + 1]]


@dataclass(frozen=True, slots=True)
class TraceSource:
    """Where a trace comes from; every process that reads it gets the same one."""

    file: str = ""
    """Empty: made-up conversations."""
    limit: int = 0
    """Requests; 0 is the whole file, or 3,000 made-up ones."""
    seed: int = 0

    def read(self) -> Trace:
        if self.file:
            return load_trace(self.file, self.limit)
        return conversations(self.limit or _DEFAULT_REQUESTS, self.seed)


def load_trace(path: str | os.PathLike[str], limit: int = 0) -> Trace:
    """Read a trace file; `limit` > 0 stops after that many requests.

    Raises ValueError naming file, line and cause when a line is not a request of either schema.
    """
    paths: list[list[int]] = []
    times: list[float] = []
    qwen = False
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if limit and len(paths) == limit:
                break
            if not line.strip():
                continue
            where = f"{os.fspath(path)}:{number}"
            row = _parse(line, where)
            if not paths:
                qwen = "chat_id" in row
            elif qwen != ("chat_id" in row):
                raise ValueError(f"{where}: Mooncake and Qwen/Bailian lines are mixed in one file")
            paths.append(row["hash_ids"])
            times.append(float(row["timestamp"]) * (1000.0 if qwen else 1.0))
    if not paths:
        raise ValueError(f"{os.fspath(path)}: no request in this file")
    block_tokens = QWEN_BLOCK_TOKENS if qwen else MOONCAKE_BLOCK_TOKENS
    return _pack(os.path.basename(os.fspath(path)), block_tokens, paths, times)


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error}); expected one object a line") from None
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(row).__name__}")
    ids = row.get("hash_ids")
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 2**63 for i in ids):
        raise ValueError(f"{where}: hash_ids must be a list of non-negative integers, got {ids!r}")
    if not isinstance(row.get("timestamp"), (int, float)):
        raise ValueError(f"{where}: timestamp must be a number, got {row.get('timestamp')!r}")
    return row


def conversations(requests: int, seed: int = 0) -> Trace:
    """A deterministic trace of `requests` requests from multi-turn chats.

    About 64 chats are open at any time; a chat that has had its last turn is replaced by a new
    one. Every prompt starts with the same system prompt.
    """
    if requests < 1:
        raise ValueError(f"requests must be at least 1, got {requests}")
    random = np.random.default_rng(seed)
    system = list(range(_SYSTEM_BLOCKS))
    next_id = _SYSTEM_BLOCKS
    due: list[tuple[float, int]] = []  # (time of the next turn, chat)
    history: dict[int, list[int]] = {}
    turns_left: dict[int, int] = {}
    paths: list[list[int]] = []
    times: list[float] = []

    def open_chat(chat: int, now_ms: float) -> None:
        history[chat] = list(system)
        turns_left[chat] = int(random.integers(*_TURNS))
        heapq.heappush(due, (now_ms + random.exponential(_THINK_MS), chat))

    for chat in range(_OPEN_CHATS):
        open_chat(chat, 0.0)
    chats = _OPEN_CHATS
    while len(paths) < requests:
        now_ms, chat = heapq.heappop(due)
        blocks = int(random.integers(*_TURN_BLOCKS))
        history[chat].extend(range(next_id, next_id + blocks))
        next_id += blocks
        paths.append(list(history[chat]))
        times.append(now_ms)
        turns_left[chat] -= 1
        if turns_left[chat]:
            heapq.heappush(due, (now_ms + random.exponential(_THINK_MS), chat))
        else:
            del history[chat], turns_left[chat]
            open_chat(chats, now_ms)
            chats += 1
    return _pack(f"conversations(seed={seed})", QWEN_BLOCK_TOKENS, paths, times)


def _pack(
    name: str, block_tokens: int, paths: Sequence[Sequence[int]], times: Sequence[float]
) -> Trace:
    offsets = np.zeros(len(paths) + 1, np.int64)
    np.cumsum([len(path) for path in paths], out=offsets[1:])
    ids = np.fromiter((i for path in paths for i in path), np.int64, count=int(offsets[-1]))
    return Trace(name, block_tokens, ids, offsets, np.asarray(times, np.float64))
