# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.cluster.backends import Backend, EtcdBackend, FileBackend, JoinerProcess
from e2e.cluster.etcd import EtcdServer


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """An etcd that is not stopped; tests use clusters of their own in it."""
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    yield server
    server.stop()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd of this test alone."""
    server = EtcdServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture(params=["file", "etcd"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Each kind of registry."""
    made: Backend
    if request.param == "file":
        made = FileBackend(tmp_path / "registry")
    else:
        made = EtcdBackend(request.getfixturevalue("shared_etcd"))
    yield made
    made.close()


@pytest.fixture(params=["file", "etcd"])
def fragile_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Each kind of registry, all for this test: it may lose its data."""
    made: Backend
    if request.param == "file":
        made = FileBackend(tmp_path / "registry")
    else:
        made = EtcdBackend(request.getfixturevalue("etcd"))
    yield made
    made.close()


@pytest.fixture
def start_joiner() -> Iterator[Callable[..., JoinerProcess]]:
    started: list[JoinerProcess] = []

    def start(backend: Backend, node: str, **more: float) -> JoinerProcess:
        started.append(JoinerProcess(backend, node, **more))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for process in started:
        process.kill()
