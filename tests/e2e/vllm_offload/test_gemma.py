# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A hybrid model: full attention beside two groups of sliding windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from e2e.vllm_offload.engines import BLOCK, Engine, prompt

from radixshmem import COMPONENT_MASK_FULL, COMPONENT_MASK_SWA, ComponentType, RadixClient
from radixshmem_core.server import RadixServer

A = prompt(1, 10 * BLOCK + 4)


@pytest.fixture
def want(gemma: str, reference: Any) -> list[list[int]]:
    tokens: list[list[int]] = reference.tokens(gemma, [A])
    return tokens


@pytest.fixture
def engine(
    gemma: str, want: list[list[int]], cache: RadixServer, start_engine: Callable[..., Engine]
) -> Engine:
    """One that has stored A, and has it in its own cache no more."""
    engine = start_engine(gemma)
    assert engine.generate([A]) == (want, [0])
    engine.settle()
    engine.forget()
    return engine


def test_windows_are_restored_with_full_attention(engine: Engine, want: list[list[int]]) -> None:
    client = engine.manager._client
    assert client.geometry is not None
    assert client.geometry["pools"]["swa"]["window_blocks"] == 2
    assert client.total_blocks() == 10
    assert engine.generate([A]) == (want, [10 * BLOCK])
    assert engine.manager._mask == COMPONENT_MASK_FULL | COMPONENT_MASK_SWA


@pytest.mark.parametrize("pool", [ComponentType.FULL, ComponentType.SWA])
def test_zeroed_slots_of_either_pool_change_the_tokens(
    engine: Engine, want: list[list[int]], region_name: str, pool: ComponentType
) -> None:
    with RadixClient(region_name) as client:
        client.wait_ready(10)
        assert client.store is not None
        np.frombuffer(client.store.pool_view(pool), np.uint8)[:] = 0
    tokens, cached = engine.generate([A])
    assert cached == [10 * BLOCK]
    assert tokens != want
