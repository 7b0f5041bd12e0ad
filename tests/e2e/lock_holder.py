# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A client process that can be stopped while it holds the writer lock of its index."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from e2e.harness import DEADLINE_S, eventually, path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.values import InsertError

LOCK_HOLDER = """
client = RadixClient(name, geometry)
say(os.getpid())
while True:
    client._index.check()  # under the lock, and hardly anything beside it
"""


def is_stopped(pid: int) -> bool:
    """Whether the process is stopped, as /proc tells."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


@contextmanager
def stop_inside_lock(pid: int, client: RadixClient) -> Iterator[None]:
    """Stop the LOCK_HOLDER `pid` while it holds the lock, which `client` sees as BUSY."""
    end = time.monotonic() + DEADLINE_S
    probe = path_hashes(1, seed=4711)
    try:
        while True:
            os.kill(pid, signal.SIGSTOP)
            eventually(lambda: is_stopped(pid), "the process is stopped")
            if client.insert(probe, [], 0).error == InsertError.BUSY:
                break
            os.kill(pid, signal.SIGCONT)
            assert time.monotonic() < end, "the process was never stopped inside the lock"
        yield
    finally:
        with suppress(ProcessLookupError):  # it may have been killed meanwhile
            os.kill(pid, signal.SIGCONT)
