# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The manager under the calls of vLLM's scheduler, without an engine: answers, bytes, leaks."""

from __future__ import annotations

import pytest
from e2e.vllm_offload.fake_node import FakeNode
from e2e.vllm_offload.fake_scheduler import Request

A, B = list(range(10)), [*range(6), 100, 101, 102]

MODELS = pytest.mark.parametrize("model", ["llama", "gemma", "mamba"])
ORDERS = pytest.mark.parametrize("end_last", [False, True], ids=["0.32", "0.33"])


@MODELS
@ORDERS
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_was_stored_is_found_whole(
    region_name: str, model: str, end_last: bool, ranks: int
) -> None:
    with FakeNode(region_name, model, ranks=ranks) as node:
        engine = node.engine(end_last=end_last)
        assert engine.run(engine.add(Request("cold", A))) == 0
        assert engine.run(engine.add(Request("local", A))) == 0
        engine.forget()
        assert engine.run(engine.add(Request("stored", A))) == 10
        assert engine.run(engine.add(Request("shared", B))) == 0  # in vLLM's own cache
        assert node.present(A) == 10
        assert node.present(B) == 9
        other = node.engine(end_last=end_last)
        assert other.run(other.add(Request("elsewhere", A))) == 10
        node.assert_idle()
