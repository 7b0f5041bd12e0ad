# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Run in an environment that has vLLM; see scripts/vllm_env.sh."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.vllm_offload.engines import Engine, Prompt, make_model
from fake_cuda import cuda_driver, fake_cuda

from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

__all__ = ["cuda_driver", "fake_cuda"]


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model("gemma3", tmp_path_factory.mktemp("gemma3"))


class Reference:
    """What a model says without any connector and without any cache."""

    def __init__(self) -> None:
        self._known: dict[str, list[int]] = {}

    def tokens(self, model: str, prompts: list[Prompt], count: int = 16) -> list[list[int]]:
        missing = [p for p in prompts if f"{model}{p}{count}" not in self._known]
        if missing:
            engine = Engine(model)
            for each in missing:
                self._known[f"{model}{each}{count}"] = engine.generate([each], count)[0][0]
            engine.close()
        return [self._known[f"{model}{p}{count}"] for p in prompts]


@pytest.fixture(scope="session")
def reference() -> Reference:
    return Reference()


@pytest.fixture
def start_engine(region_name: str) -> Iterator[Callable[..., Engine]]:
    """Starts engines on a server, that of this test if none is named, one at a time; the last is
    closed at its end."""
    running: list[Engine] = []

    def start(model: str, server: str = region_name, **options: Any) -> Engine:
        while running:
            running.pop().close()
        running.append(Engine(model, server, **options))
        return running[0]

    yield start
    for engine in running:
        engine.close()


@pytest.fixture
def cache(region_name: str) -> Iterator[RadixServer]:
    """A server of 16 MiB: more than any of these tests fills."""
    with RadixServer(ServerConfig(region_name, data_bytes="16M", swa_ratio=0.4)) as running:
        yield running
