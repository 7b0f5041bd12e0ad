# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Processes and helpers of the end-to-end tests."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from radixshmem_core.values import Geometry

DEADLINE_S = 30.0
GEOMETRY = Geometry(16, 4000, slot_align=4096)
"""The geometry of most tests: 4096-byte strides, so data_bytes="1M" holds 256 slots."""


def path_hashes(count: int, seed: int = 0) -> npt.NDArray[np.uint64]:
    """Hashes of a path of its own: what the index needs is only that paths do not collide."""
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


def why_not_unshare(command: Sequence[str]) -> str:
    """Why no namespace can be made with `unshare --KIND ...` here; empty when one can."""
    try:
        made = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no unshare(1)"
    return "" if made.returncode == 0 else f"{' '.join(command[:2])}: {made.stderr.strip()}"


def eventually(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Look until `condition()` is true; fails at the deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.01)


class Held:
    """A function of a module from now on: it says that it has begun, and waits to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._function: Callable[..., Any] = getattr(module, name)
        monkeypatch.setattr(module, name, self)

    def __call__(self, *arguments: Any) -> Any:
        self.begun.set()
        assert self.go_on.wait(DEADLINE_S)
        return self._function(*arguments)


class Process:
    """A child process whose stdout is read line by line, ended by its own id."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._log)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _log(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def errors(self) -> str:
        return "".join(self._errors)

    def line(self) -> str:
        """The next line of stdout."""
        line = self._lines.get(timeout=DEADLINE_S)
        assert line is not None, f"the process ended: {self.wait()}\n{self.errors}"
        return line

    def tell(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code; all output has been read afterwards."""
        code = self._process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        return code

    def kill_only(self) -> None:
        """SIGKILL, and wait for its death, but not for its children to close the output."""
        self._process.kill()
        self._process.wait(DEADLINE_S)

    def kill(self) -> None:
        """SIGKILL, and wait. Harmless when it has ended."""
        if self._process.poll() is None:
            self._process.kill()
        self.wait()


class ServerProcess(Process):
    """A radix-server; `event` waits for one of its JSON events."""

    def __init__(self, name: str, *flags: str) -> None:
        super().__init__("-m", "radixshmem_core.cli", "start", "--json", "--name", name, *flags)

    def event(self, what: str) -> dict[str, Any]:
        while True:
            event: dict[str, Any] = json.loads(self.line())
            if event["event"] == what:
                return event

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.signal(number)
        return self.wait()


CLIENT_PRELUDE = """
import os, signal, sys
import numpy as np
from radixshmem_core.client import RadixClient
from radixshmem_core.values import Geometry
name = sys.argv[1]
geometry = Geometry(16, 4000, slot_align=4096)
def hashes(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)
def say(*words):
    print(*words, flush=True)
def hear():
    return sys.stdin.readline().strip()
"""
