# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The process that serves our slots to the NIXL of peers when UCX reads over tcp.

There a read is answered by UCX in the process that owns the memory, and UCX aborts this process
when the reader goes before it has its answer: one node that dies would take every node with it that
it reads from. So this is not the server. The process maps the slots read-only, is started again
when it ends, and ends with the server, when its stdin does.
"""

from __future__ import annotations

import base64
import logging
import os
import select
import signal
import subprocess
import sys
import threading

from ...errors import RadixError
from ...store import SlotStore
from .base import Memory
from .nixl_agent import start_agent

__all__ = ["Target"]

_START_S = 30.0
_AGAIN_S = 1.0  # between two starts

_log = logging.getLogger(__name__)


class Target:
    """Keeps one such process running."""

    def __init__(self, store_name: str, hugepage_path: str) -> None:
        """RadixError when it does not start."""
        program = f"from {__package__}.nixl_target import main; main()"
        self._command = [sys.executable, "-c", program, store_name, hugepage_path]
        self._changed = threading.Condition()  # of `_closed`; guards the two below
        self._serving: tuple[int, bytes] | None = None
        self._closed = False
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep, name="radixshmem-target", daemon=True)
        self._keeper.start()

    def serving(self) -> tuple[int, bytes]:
        """Where the slots are in it, and the metadata of its agent. RadixError while none runs."""
        with self._changed:
            if self._serving is None:
                what = "has ended" if self._closed else "is starting again"
                raise RadixError(f"the process that serves slots over nixl {what}")
            return self._serving

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._process.kill()
        self._keeper.join()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        said: list[bytes] = []
        if select.select([process.stdout], [], [], _START_S)[0]:
            said = process.stdout.readline().split()
        if len(said) != 2:
            _end(process)
            raise RadixError(
                f"the process that serves slots over nixl does not start within {_START_S:.0f} s, "
                f"or has ended (code {process.returncode}); it says why on stderr"
            )
        with self._changed:
            self._serving = int(said[0]), base64.b64decode(said[1])
        return process

    def _keep(self) -> None:
        """In a thread: see it end, and start the next one."""
        while True:
            code = self._process.wait()
            _end(self._process)
            with self._changed:
                self._serving = None
            while True:
                with self._changed:
                    if self._changed.wait_for(lambda: self._closed, _AGAIN_S):
                        return
                _log.warning("the process that serves slots over nixl has ended (code %d)", code)
                try:
                    process = self._start()
                except (RadixError, OSError) as error:
                    _log.warning("%s", error)
                    continue
                with self._changed:
                    self._process = process
                    if self._closed:
                        process.kill()
                break


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's end is ours
    store = SlotStore.attach(sys.argv[1], sys.argv[2], read_only=True)
    memory = Memory.of(store)
    agent = start_agent(memory)
    print(memory.address, base64.b64encode(agent.getLocalMD()).decode(), flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # without the words of UCX about what is still open
