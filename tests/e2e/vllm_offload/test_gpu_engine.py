# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Real engines whose copies are made by a fake GPU: late, in pieces, in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from e2e.vllm_offload.engines import Engine, prompt
from e2e.vllm_offload.fake_gpu import FakeGpu
from fake_cuda import FakeCuda

from radixshmem.integrations.vllm_offload.copy_cuda import CudaCopier
from radixshmem_core import cuda
from radixshmem_core.server import RadixServer

A = prompt(1, 324)  # 10 blocks and a bit
TIMEOUT_S = 30.0
DEADLINE_S = 60
CHUNK = 16 << 10


@pytest.fixture
def on_gpu(
    cache: RadixServer,
    llama: str,
    start_engine: Callable[..., Engine],
    fake_cuda: FakeCuda,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[Engine, FakeGpu]]:
    """An engine with a fake GPU between its KV cache and the slots."""
    monkeypatch.setattr(cuda, "_CHUNK_BYTES", CHUNK)

    def start(seed: int = 0, **options: Any) -> tuple[Engine, FakeGpu]:
        engine = start_engine(llama, **options)
        gpu = FakeGpu(fake_cuda, seed)
        gpu.steps_when_looked_at = True
        worker = engine.worker
        gpu.cache = [
            (base, stride * 512)
            for copy in worker._copies
            for base, stride in zip(copy._bases.tolist(), copy._strides.tolist(), strict=True)
        ]
        worker._copier = CudaCopier(gpu, TIMEOUT_S, buffer_bytes=100_000, clock=lambda: gpu.now)
        return engine, gpu

    return start


def register(engine: Engine) -> None:
    """Until all slots are registered."""
    store = engine.worker._client.store
    assert store is not None
    store.register_cuda().wait(DEADLINE_S)


def settle(engine: Engine) -> None:
    """Until no store is under way."""
    for _ in range(200):
        engine.settle()
        if engine.manager.stores.empty:
            return
    raise AssertionError("stores are still under way")


@pytest.mark.parametrize("registered", [0, 3, -1])
def test_blocks_come_back_as_they_were(
    on_gpu: Callable[..., tuple[Engine, FakeGpu]],
    llama: str,
    reference: Any,
    fake_cuda: FakeCuda,
    registered: int,
) -> None:
    want = reference.tokens(llama, [A])
    fake_cuda.reset(allowed=registered)
    engine, gpu = on_gpu(seed=registered + 1)
    if registered == -1:
        register(engine)
    assert engine.generate([A]) == (want, [0])
    settle(engine)
    assert engine.manager.figures.failed_stores == 0
    engine.forget()
    assert engine.generate([A]) == (want, [320])
    assert gpu.copies > 0
    assert (gpu.buffers == 0) == (registered == -1)
    settle(engine)
    engine.assert_idle()
    fake_cuda.allow(-1)


@pytest.mark.slow
def test_preempted_requests_wait_for_their_stores(
    on_gpu: Callable[..., tuple[Engine, FakeGpu]], llama: str, reference: Any
) -> None:
    four = [prompt(20 + i, 200) for i in range(4)]
    want = reference.tokens(llama, four, 100)
    engine, _ = on_gpu(blocks=34)
    assert engine.generate(four, 100)[0] == want
    settle(engine)
    assert engine.generate(four, 100)[0] == want
    settle(engine)
    assert engine.manager.figures.failed_stores == 0
    engine.assert_idle()


def test_slots_of_a_late_store_come_back_when_it_has_ended(
    on_gpu: Callable[..., tuple[Engine, FakeGpu]], llama: str, reference: Any
) -> None:
    want = reference.tokens(llama, [A])
    engine, gpu = on_gpu()
    register(engine)
    gpu.stores.hangs = True
    assert engine.generate([A]) == (want, [0])
    gpu.now += TIMEOUT_S
    settle(engine)
    manager = engine.manager
    assert manager.figures.failed_stores >= 10
    assert manager._client.mempool_used() == manager.quarantine.withheld >= 10, (
        "not for anybody else"
    )
    gpu.stores.hangs = False
    gpu.transfers_first()
    settle(engine)
    engine.settle()
    assert manager._client.mempool_used() == 0
    assert manager.quarantine.empty
    engine.forget()
    assert engine.generate([A]) == (want, [0])


def test_a_late_load_is_computed_instead(
    on_gpu: Callable[..., tuple[Engine, FakeGpu]], llama: str, reference: Any
) -> None:
    want = reference.tokens(llama, [A])
    engine, gpu = on_gpu()
    engine.generate([A])
    settle(engine)
    engine.forget()
    gpu.loads.hangs = True
    gpu.seconds_per_look = 1.0
    assert engine.generate([A])[0] == want
    assert engine.manager.figures.failed_loads == 1
    gpu.loads.hangs = False
    gpu.transfers_first()
    settle(engine)
    engine.assert_idle()
