# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Figures of the adapter in vLLM's log and metrics, beside those of its offloading connector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from e2e.harness import eventually
from e2e.vllm_offload.engines import BLOCK, Engine, prompt

from radixshmem.integrations.vllm_offload import RadixShmemOffloadingSpec
from radixshmem.integrations.vllm_offload.metrics import GAUGES, PREFIX, Figures, Meter
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

A = prompt(1, 10 * BLOCK + 4)
BLOCK_BYTES = 65536  # of the tiny Llama


def test_every_figure_is_told_once_and_has_a_definition() -> None:
    figures = Figures()
    meter = Meter(figures, lambda: dict.fromkeys(GAUGES, 0.5))
    first = meter.take()
    assert first is not None
    assert set(first.reduce()) == {PREFIX + name for name in GAUGES}
    for number, figure in enumerate(fields(Figures), start=1):
        setattr(figures, figure.name, number)
    second = meter.take()
    assert second is not None
    counted = {PREFIX + f.name: n for n, f in enumerate(fields(Figures), start=1)}
    assert second.reduce() == counted
    assert meter.take() is None, "what was told is not told again"
    known = RadixShmemOffloadingSpec.build_metric_definitions({})
    assert set(known) == counted.keys() | first.reduce().keys()
    assert all(metric.documentation for metric in known.values())


def _metrics(engine: Engine) -> dict[str, float]:
    """The values of this engine's metrics; of a histogram its sum."""
    values = {}
    for metric in engine.llm.get_metrics():
        values[metric.name] = metric.value if hasattr(metric, "value") else metric.sum
    return values


def test_an_engine_shows_what_it_stored_loaded_and_failed_to(
    llama: str,
    reference: Any,
    cache: RadixServer,
    start_engine: Callable[..., Engine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    want = reference.tokens(llama, [A])
    engine = start_engine(llama)
    engine.store([A])
    engine.generate([A])
    engine.settle()
    seen = _metrics(engine)
    assert seen[PREFIX + "stored_blocks"] == 10
    assert 0 < seen[PREFIX + "cache_usage_perc"] < 0.1
    assert seen["vllm:external_prefix_cache_hits"] == 10 * BLOCK
    assert seen["vllm:kv_offload_store_bytes"] == 10 * BLOCK_BYTES
    assert seen["vllm:kv_offload_load_bytes"] == 10 * BLOCK_BYTES
    assert seen["vllm:kv_offload_load_size"] == 10 * BLOCK_BYTES
    assert seen.get(PREFIX + "failed_loads", 0) == 0

    engine.fail_copies(monkeypatch)
    engine.forget()
    assert engine.generate([A])[0] == want
    engine.settle()
    assert _metrics(engine)[PREFIX + "failed_loads"] == 1


def test_a_server_that_closed_is_counted_and_told_once(
    llama: str,
    region_name: str,
    start_engine: Callable[..., Engine],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = ServerConfig(region_name, data_bytes="16M")
    with RadixServer(config):
        engine = start_engine(llama)
        engine.generate([A])
        engine.settle()
    for _ in range(3):
        assert engine.generate([A], 1)[1] == [10 * BLOCK], "vLLM's own cache"
        engine.forget()
        assert engine.generate([A], 1)[1] == [0]
    assert engine.manager.figures.lost_servers == 1
    assert caplog.text.count("until it is back") == 1
    with RadixServer(config):

        def stored() -> bool:
            engine.generate([A], 1)
            engine.settle()
            return engine.manager.figures.stored_blocks == 20

        eventually(stored, "the engine stores in the server that came back")
        engine.forget()
        assert engine.generate([A], 1)[1] == [10 * BLOCK]
        assert caplog.text.count("is back") == 2
        assert engine.manager.figures.lost_servers == 1
