# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Run in an environment that has SGLang; see scripts/sglang_env.sh."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

# What SGLang lacks on a CPU, for tests that import it; servers get it by themselves.
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "sglang_cpu"))
os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))

from e2e.sglang_hicache.node import Gates, Node
from sglang_server import SGLangServer, dynamic_flags, native_flags
from tiny_llama import make_model

from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

START_S = 400.0
_LOG = 15_000  # characters: the ranks that ended last end for the sake of the first


class StartSGLang:
    """Starts servers, and keeps them."""

    def __init__(self, model: str, gates: Gates, folders: pytest.TempPathFactory) -> None:
        self._model = model
        self._folders = folders
        self._gates = {
            "PYTHONPATH": str(Path(__file__).with_name("gates")),
            "RADIX_GATES": str(gates.folder),
        }
        self.started: list[SGLangServer] = []

    def __call__(self, *flags: str, **environment: str) -> SGLangServer:
        log = self._folders.mktemp("sglang") / "log"
        self.started.append(SGLangServer(log, self._model, *flags, **self._gates, **environment))
        return self.started[-1]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test tells what the servers said that died."""
    report = yield
    start = getattr(item, "funcargs", {}).get("start_sglang")
    if report.failed and start is not None:
        for server in start.started:
            if server.died:
                report.sections.append(("an SGLang server that died", server.log()[-_LOG:]))
    return report


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("llama") / "model")
    make_model(folder)
    return folder


@pytest.fixture(scope="session")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    return Gates(tmp_path_factory.mktemp("gates"))


@pytest.fixture(scope="session")
def start_sglang(
    model: str, gates: Gates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartSGLang]:
    """Those that still run at the end of all tests are stopped."""
    start = StartSGLang(model, gates, tmp_path_factory)
    yield start
    for server in start.started:
        server.stop()


def make_node(purpose: str) -> Iterator[Node]:
    node = Node(f"/radixtest-{os.getpid()}-{purpose}-")
    yield node
    node.close()


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """The radix-server of the two servers below."""
    yield from make_node("sglang")


@pytest.fixture(scope="session")
def both(node: Node, start_sglang: StartSGLang) -> tuple[SGLangServer, SGLangServer]:
    """The two of the demo, on an empty cache: one by SGLang's flag, the other `dynamic`."""
    node.start()
    native = start_sglang(*native_flags(node.name))
    dynamic = start_sglang(*dynamic_flags(node.name))
    return native.wait(START_S), dynamic.wait(START_S)


@pytest.fixture
def native(node: Node, both: tuple[SGLangServer, SGLangServer]) -> Iterator[SGLangServer]:
    """The first of them; all caches are empty."""
    server = both[0]
    if not node.running:
        node.start()
    node.wait_attached(len(both))
    server.client.flush_cache()
    node.client.reset()
    yield server
    assert server.alive, server.last_words()
    if node.running:
        node.assert_idle()


@pytest.fixture
def cache(region_name: str) -> Iterator[RadixServer]:
    """A server for more pages than a test with `start_rank` stores."""
    config = ServerConfig(
        region_name,
        data_bytes="8M",
        slot_align=64,
        swa_ratio=0.2,
        mamba_ratio=0.2,
        quarantine_s=0.2,
    )
    with RadixServer(config) as running:
        yield running


@pytest.fixture
def small(region_name: str) -> Iterator[RadixServer]:
    """A server of few slots, which nothing but a store makes free."""
    config = ServerConfig(region_name, data_bytes="256K", background_evict_ratio=0)
    with RadixServer(config) as running:
        yield running


@pytest.fixture(params=[1, 3])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """What the storage takes for the model's window, in pages; the pools of the tests have 3."""
    from radixshmem.integrations.sglang_hicache import attached

    pages: int = request.param
    monkeypatch.setattr(attached, "window_pages", lambda page_size: pages)
    return pages


@pytest.fixture
def start_rank(region_name: str) -> Iterator[Callable[..., Any]]:
    """Starts controllers in this process, on the server of this test: see controllers.start."""
    from e2e.sglang_hicache import controllers

    running: list[controllers.Rank] = []

    def start(*sidecars: Any, **options: Any) -> controllers.Rank:
        running.append(controllers.start(region_name, *sidecars, **options))
        return running[-1]

    yield start
    for rank in running:
        rank.close()
