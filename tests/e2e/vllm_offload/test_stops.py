# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Processes that are stopped, not dead: an engine neither waits for them nor says nothing."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.harness import Process, ServerProcess
from e2e.lock_holder import LOCK_HOLDER, stop_inside_lock
from e2e.vllm_offload.contracts import kv_caches, offloading_config
from e2e.vllm_offload.engines import BLOCK, Engine, prompt

from radixshmem import RadixClient, ServerNotReady
from radixshmem.integrations.vllm_offload import RadixShmemOffloadingSpec
from radixshmem_core.server import RadixServer

A = prompt(1, 10 * BLOCK + 4)
SHORT = [prompt(seed, BLOCK + 4) for seed in range(100, 132)]

_HOLDER = """
import os, sys
from radixshmem_core.client import RadixClient
name, geometry = sys.argv[1], None
def say(*words):
    print(*words, flush=True)
"""


@pytest.fixture
def stopped_server(start_server: Callable[..., ServerProcess]) -> Iterator[ServerProcess]:
    server = start_server()
    server.event("waiting")
    server.signal(signal.SIGSTOP)
    yield server
    server.signal(signal.SIGCONT)
    assert server.stop() == 0


def test_a_start_tells_of_a_stopped_server(
    stopped_server: ServerProcess, region_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixshmem_core.client._ASK_TIMEOUT_S", 0.2)
    spec = RadixShmemOffloadingSpec(offloading_config(region_name, extra={"wait_server_s": 0.5}))
    said = rf"no radix-server {region_name} on host .* after 0.5 s: .*{region_name}.sock did not"
    with pytest.raises(ServerNotReady, match=said):
        spec.get_worker(kv_caches([[64]]))
    with pytest.raises(ServerNotReady, match=said):
        spec.get_manager()


def test_a_stopped_lock_holder_costs_an_engine_its_stores_and_one_timeout(
    llama: str,
    reference: Any,
    cache: RadixServer,
    region_name: str,
    start_engine: Callable[..., Engine],
    processes: Callable[..., Any],
) -> None:
    wanted = reference.tokens(llama, [A, *SHORT[:2]])
    engine = start_engine(llama)
    engine.store([A])
    holder = processes(Process, "-c", _HOLDER + LOCK_HOLDER, region_name)
    holder.line()
    with RadixClient(region_name) as probe, stop_inside_lock(holder.pid, probe):
        assert engine.generate([A]) == (wanted[:1], [10 * BLOCK]), "readers do not wait"
        begin = time.monotonic()
        tokens, _ = engine.generate(SHORT)
        assert time.monotonic() - begin < len(SHORT) / 2, "1 s for each store"
        assert tokens[:2] == wanted[1:]
        engine.forget()
        assert engine.generate(SHORT)[1] == [0] * len(SHORT), "none was stored"
    holder.kill()
    engine.settle()
    engine.forget()
    engine.store(SHORT)
    assert engine.generate(SHORT)[1] == [BLOCK] * len(SHORT)
    engine.assert_idle()
