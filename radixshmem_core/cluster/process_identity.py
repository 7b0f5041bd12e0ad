# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A process named so that others on its machine can tell whether it still lives."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["has_died", "lives", "this_process"]

_START_FIELD = 19  # of /proc/<pid>/stat, counted after the name; clock ticks since boot


def this_process() -> str:
    """Machine (since its boot), PID namespace, process, start of the process. "" if not known."""
    try:
        return f"{_place()}/{os.getpid()}/{_start_of(os.getpid())}"
    except OSError:
        return ""


def lives(process: str) -> bool:
    """True only if it is certain that this process lives; False also if it cannot be told."""
    return _state(process) is True


def has_died(process: str) -> bool:
    """True only if it is certain that this process has ended."""
    return _state(process) is False


def _state(process: str) -> bool | None:
    place, _, rest = process.partition("/")
    pid, _, start = rest.partition("/")
    try:
        if not pid.isdecimal() or place != _place():
            return None
        os.kill(int(pid), 0)
        return _start_of(int(pid)) == start
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return None  # another user's, and hidden


def _place() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"


def _start_of(pid: int) -> str:
    """Raises ProcessLookupError for a process that has ended and waits for its parent."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        raise ProcessLookupError(pid)
    return fields[_START_FIELD]
