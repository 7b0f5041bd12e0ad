# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The C++ benchmark as a process that measures a row whenever it is asked to."""

from __future__ import annotations

import json
import subprocess
from typing import Any

__all__ = ["RadixBench"]


class RadixBench:
    """A running `radix_bench`. Use as a context manager; one thread at a time."""

    def __init__(self, executable: str, workload: str = "") -> None:
        command = [executable, workload] if workload else [executable]
        self._executable = executable
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.rows: tuple[str, ...] = tuple(self._read()["rows"])

    def __enter__(self) -> RadixBench:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, which ends it

    def ask(self, row: str) -> None:
        """Let it begin a sample; `answer` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{row}\n")
        self._process.stdin.flush()

    def answer(self) -> float:
        """Seconds per operation of the sample that was asked for."""
        return float(self._read()["ns"]) * 1e-9

    def measure(self, row: str) -> float:
        self.ask(row)
        return self.answer()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
            status = self._process.returncode
            raise RuntimeError(
                f"{self._executable} ended with status {status} before it answered; "
                "its own message is above"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer
