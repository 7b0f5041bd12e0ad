# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Real servers and real client processes for the end-to-end tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.harness import CLIENT_PRELUDE, GEOMETRY, Process, ServerProcess, path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer


@pytest.fixture
def server(region_name: str) -> Iterator[RadixServer]:
    """A server in this process, without a geometry yet: 1 MiB for slots."""
    with RadixServer(ServerConfig(region_name, data_bytes="1M", quarantine_s=0.2)) as running:
        yield running


@pytest.fixture
def processes(region_name: str) -> Iterator[Callable[..., Any]]:
    """Starts `kind(*arguments)` processes; those that still run at the end are killed."""
    started: list[Process] = []

    def start(kind: Callable[..., Process], *arguments: str) -> Process:
        started.append(kind(*arguments))
        return started[-1]

    yield start
    for process in reversed(started):
        process.kill()


@pytest.fixture
def start_server(region_name: str, processes: Callable[..., Any]) -> Callable[..., ServerProcess]:
    """Starts radix-servers of `region_name` that wait for a geometry, or run on an adopted one."""

    def start(*flags: str, data_bytes: str = "1M") -> ServerProcess:
        server: ServerProcess = processes(
            ServerProcess, region_name, "--data-bytes", data_bytes, *flags
        )
        return server

    return start


@pytest.fixture
def orphan(region_name: str, start_server: Callable[..., ServerProcess]) -> Iterator[RadixClient]:
    """A client whose server was killed; path_hashes(5) are in its cache."""
    server = start_server()
    server.event("waiting")
    with RadixClient(region_name, GEOMETRY) as client:
        client.insert(path_hashes(5), client.allocate_slots(5))
        server.kill()
        yield client


@pytest.fixture
def start_client(region_name: str, processes: Callable[..., Any]) -> Callable[[str], Process]:
    """Starts a process that runs CLIENT_PRELUDE and a program."""

    def start(program: str) -> Process:
        process: Process = processes(Process, "-c", CLIENT_PRELUDE + program, region_name)
        return process

    return start
