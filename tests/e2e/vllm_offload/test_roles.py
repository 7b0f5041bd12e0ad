# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""kv_role: a producer stores and does not load, a consumer loads and does not store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from e2e.vllm_offload.engines import BLOCK, Engine, prompt

from radixshmem_core.server import RadixServer

A = prompt(1, 10 * BLOCK + 4)
B = prompt(2, 6 * BLOCK + 4)


def test_a_producer_only_stores_and_a_consumer_only_loads(
    llama: str, reference: Any, cache: RadixServer, start_engine: Callable[..., Engine]
) -> None:
    want = reference.tokens(llama, [A, B])
    producer = start_engine(llama, role="kv_producer")
    producer.store([A])
    assert producer.manager._client.total_blocks() == 10
    assert producer.generate([A]) == (want[:1], [0])
    producer.assert_idle()

    consumer = start_engine(llama, role="kv_consumer")
    assert consumer.generate([A]) == (want[:1], [10 * BLOCK])
    assert consumer.generate([B]) == (want[1:], [0])
    consumer.settle()
    consumer.forget()
    assert consumer.generate([B]) == (want[1:], [0])
    assert consumer.manager._client.total_blocks() == 10
    consumer.assert_idle()
