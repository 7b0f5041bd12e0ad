# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from traces import (
    MOONCAKE_BLOCK_TOKENS,
    QWEN_BLOCK_TOKENS,
    conversations,
    load_trace,
)

MOONCAKE = {"timestamp": 27_482, "input_length": 900, "output_length": 5, "hash_ids": [0, 14]}
QWEN = {
    "chat_id": 159,
    "parent_chat_id": 55,
    "timestamp": 61.5,
    "input_length": 40,
    "output_length": 9,
    "type": "text",
    "turn": 2,
    "hash_ids": [7, 8, 9],
}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_mooncake_lines_have_512_token_blocks_and_milliseconds(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "t.jsonl", MOONCAKE, {**MOONCAKE, "hash_ids": [0, 2, 3]}))
    assert trace.block_tokens == MOONCAKE_BLOCK_TOKENS == 512
    assert len(trace) == 2
    assert trace.references == 5
    assert trace.path(0).tolist() == [0, 14]
    assert trace.path(1).tolist() == [0, 2, 3]
    assert trace.times_ms.tolist() == [27_482.0, 27_482.0]


def test_qwen_lines_have_16_token_blocks_and_seconds(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "t.jsonl", QWEN))
    assert trace.block_tokens == QWEN_BLOCK_TOKENS == 16
    assert trace.path(0).tolist() == [7, 8, 9]
    assert trace.times_ms.tolist() == [61_500.0]


def test_limit_stops_early_and_empty_lines_do_not_count(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", MOONCAKE, MOONCAKE, MOONCAKE)
    path.write_text("\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert len(load_trace(path, 2)) == 2
    assert len(load_trace(path)) == 3


def test_request_without_blocks_is_an_empty_path(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "t.jsonl", {**MOONCAKE, "hash_ids": []}, MOONCAKE))
    assert trace.path(0).tolist() == []
    assert trace.path(1).tolist() == [0, 14]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("{", "t.jsonl:2: not JSON"),
        ("[1]", "t.jsonl:2: expected a JSON object, got list"),
        (json.dumps({**MOONCAKE, "hash_ids": "0"}), "t.jsonl:2: hash_ids must be a list"),
        (json.dumps({**MOONCAKE, "hash_ids": [-1]}), "non-negative integers, got .-1."),
        (json.dumps({**MOONCAKE, "hash_ids": [True]}), "non-negative integers, got .True."),
        (json.dumps({**MOONCAKE, "timestamp": None}), "t.jsonl:2: timestamp must be a number"),
        (json.dumps(QWEN), "t.jsonl:2: Mooncake and Qwen/Bailian lines are mixed"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, second: str, message: str) -> None:
    path = write(tmp_path / "t.jsonl", MOONCAKE)
    path.write_text(path.read_text(encoding="utf-8") + second + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_trace(path)


def test_file_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no request in this file"):
        load_trace(write(tmp_path / "t.jsonl"))


def test_conversations_are_deterministic_and_differ_by_seed() -> None:
    first, again, other = conversations(200, 3), conversations(200, 3), conversations(200, 4)
    assert np.array_equal(first.ids, again.ids)
    assert np.array_equal(first.times_ms, again.times_ms)
    assert not np.array_equal(first.ids[: len(other.ids)], other.ids[: len(first.ids)])


def test_conversations_share_a_system_prompt_and_repeat_their_history() -> None:
    trace = conversations(400, 1)
    assert len(trace) == 400
    assert np.all(np.diff(trace.times_ms) >= 0)
    paths = [tuple(trace.path(request).tolist()) for request in range(len(trace))]
    assert len({path[:32] for path in paths}) == 1
    parents: dict[int, int] = {}
    for path in paths:  # an id stands for one prefix, as in the published traces
        for parent, child in zip((-1, *path), path, strict=False):
            assert parents.setdefault(child, parent) == parent
    continued = sum(
        any(path[: len(earlier)] == earlier for earlier in paths[:number])
        for number, path in enumerate(paths)
    )
    assert continued > len(paths) // 2


def test_conversations_needs_a_request() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        conversations(0)
