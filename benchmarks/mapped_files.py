# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What processes have in shared memory, for who cleans up behind those that are killed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["mapped_files"]


def mapped_files(pids: Iterable[int], name: str) -> set[str]:
    """The files /dev/shm/`name`*, a regular expression, that any of them maps."""
    files: set[str] = set()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            maps = Path(f"/proc/{pid}/maps").read_text()
            files.update(re.findall(rf"/dev/shm/{name}\S+", maps))
    return files
