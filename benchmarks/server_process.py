# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A radix-server of our own, as its own process, for as long as a `with` block lasts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import radixshmem

__all__ = ["interrupt_held", "own_name", "radix_server", "server_status"]

_STOP_TIMEOUT_S = 20.0
_CONNECT_INTERVAL_S = 0.02


def own_name(purpose: str) -> str:
    """A server name that no other run uses."""
    return f"/radix_{purpose}_{os.getpid()}"


@contextlib.contextmanager
def interrupt_held() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, and never reaches the processes started in it.

    They have SIGINT blocked: whoever starts them ends them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def radix_server(
    name: str, *flags: str, timeout_s: float = 60.0
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `radix-server --name NAME FLAGS`, wait until it answers, stop it at the end.

    Raises RuntimeError with the server's own last words when it does not come up, or when it was
    no longer running at the end.
    """
    with tempfile.TemporaryFile() as log, contextlib.ExitStack() as held:
        held.enter_context(interrupt_held())
        process = subprocess.Popen(
            [_executable(), "--name", name, *flags], stdout=log, stderr=subprocess.STDOUT
        )

        def failed(what: str) -> RuntimeError:
            log.seek(0)
            words = log.read().decode(errors="replace").strip()
            return RuntimeError(f"radix-server --name {name} {what}; it said:\n{words}")

        try:
            held.close()
            deadline = time.monotonic() + timeout_s
            while not _answers(name):
                if process.poll() is not None:
                    raise failed(f"ended with status {process.returncode} at start")
                if time.monotonic() > deadline:
                    raise failed(f"did not answer within {timeout_s} s")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_CONNECT_INTERVAL_S)
            yield process
            if process.poll() is not None:
                raise failed(f"ended with status {process.returncode} while in use")
        finally:
            _stop(process)


def _answers(name: str) -> bool:
    try:
        radixshmem.RadixClient(name, read_only=True).close()
    except (radixshmem.RadixError, OSError):
        return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def server_status(name: str) -> dict[str, Any]:
    """What `radix-server status --json` says."""
    output = subprocess.run(
        [_executable(), "status", "--name", name, "--json"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    status: dict[str, Any] = json.loads(output)
    return status


def _executable() -> str:
    """The radix-server of this Python's environment, else the one on PATH."""
    beside = Path(sys.executable).parent / "radix-server"
    found = str(beside) if beside.exists() else shutil.which("radix-server")
    if found is None:
        raise RuntimeError(
            "radix-server is not installed for this Python; run `pip install .` in the repository"
        )
    return found
