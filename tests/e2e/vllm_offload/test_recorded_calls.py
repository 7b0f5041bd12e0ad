# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The calls that a real engine made, made again without one: the same answers, nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.vllm_offload.fake_node import FakeNode
from e2e.vllm_offload.recorded import read
from e2e.vllm_offload.replay import Replay, end_last

_CALLS = Path(__file__).parent / "calls"
_BLOCK_TOKENS = 32  # of the engine that was recorded


@pytest.mark.parametrize("order", ["0.32", "0.33"])
@pytest.mark.parametrize(("model", "recorded"), [("llama", "llama"), ("gemma", "gemma3")])
def test_recorded_calls_are_answered_alike(
    region_name: str, model: str, recorded: str, order: str
) -> None:
    lines = read(_CALLS / f"{recorded}.jsonl")
    with FakeNode(region_name, model, blocks=512) as node:
        engine = node.engine(block_tokens=_BLOCK_TOKENS, end_last=order == "0.33")
        engine.manager.quarantine.told_of_flush = False  # the engine that was recorded did not tell
        replay = Replay(engine.manager, engine.workers)
        replay.run(end_last(lines) if order == "0.33" else lines)
        replay.next_step(max(line.get("request", 0) for line in lines))
        assert replay.hits > 100
        node.assert_idle()
