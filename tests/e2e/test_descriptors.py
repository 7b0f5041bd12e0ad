# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A server of many clients under a low limit of open files."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import GEOMETRY, Process

from radixshmem_core.client import RadixClient

LIMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
name, *more = sys.argv[1:]
"""
COMMAND = """
from radixshmem_core.cli import main
sys.exit(main(["start", "--json", "--name", name, "--data-bytes", "1M", *more]))
"""
EMBEDDED = """
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer
with RadixServer(ServerConfig(name, data_bytes="1M")):
    print("waiting", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("program", [COMMAND, EMBEDDED], ids=["command", "embedded"])
def test_server_raises_its_descriptor_limit_for_its_clients(
    program: str, region_name: str, processes: Callable[..., Any]
) -> None:
    server = processes(Process, "-c", LIMIT + program, region_name)
    assert "waiting" in server.line()
    with contextlib.ExitStack() as clients:
        for _ in range(60):
            clients.enter_context(RadixClient(region_name, GEOMETRY))
    if program is COMMAND:
        server.signal(signal.SIGTERM)
    else:
        server.tell("end")
    assert server.wait() == 0


def test_a_server_of_a_cluster_asks_for_more(
    region_name: str, processes: Callable[..., Any], tmp_path: Path
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = ("--registry", f"file://{tmp_path}", "--transfer-backend", "builtin")
    server = processes(Process, "-c", LIMIT + COMMAND, region_name, *more)
    assert "waiting" in server.line()
    soft, _ = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    assert soft >= min(hard, 4096)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
