# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A server of many clients under a low limit of open files."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any

from e2e.harness import GEOMETRY, Process

from radixshmem_core.client import RadixClient

SERVER = """
import resource, sys
from radixshmem_core.cli import main
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
sys.exit(main(sys.argv[1:]))
"""


def test_server_raises_its_descriptor_limit_for_its_clients(
    region_name: str, processes: Callable[..., Any]
) -> None:
    flags = ("start", "--json", "--name", region_name, "--data-bytes", "1M")
    server = processes(Process, "-c", SERVER, *flags)
    assert "waiting" in server.line()
    with contextlib.ExitStack() as clients:
        for _ in range(60):
            clients.enter_context(RadixClient(region_name, GEOMETRY))
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
