# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Threads that are in the middle of a call when the interpreter ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e.harness import Process

from radixshmem_core.server import RadixServer

WORK = {
    "changes": "client.recycle_slots(client.allocate_slots(50))",
    "reads": "client.mempool_free(); client.query(hashes(5), lock=True).finalize()",
    "copies": "client.store.read_slot(1)",
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_interpreter_ends_cleanly_around_daemon_threads(
    server: RadixServer, region_name: str, start_client: Callable[[str], Process], work: str
) -> None:
    program = f"""
import threading
client = RadixClient(name, geometry)
warm = threading.Semaphore(0)
def go_on():
    for _ in range(20):
        {work}
    warm.release()
    while True:
        {work}
for _ in range(4):
    threading.Thread(target=go_on, daemon=True).start()
for _ in range(4):
    warm.acquire()
"""
    for process in [start_client(program) for _ in range(3)]:
        assert process.wait() == 0, process.errors
