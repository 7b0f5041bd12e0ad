# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from radixshmem_core.errors import RadixError
from radixshmem_core.ownership import FileLock, region_file


def test_file_belongs_to_one_owner(tmp_path: Path) -> None:
    path = tmp_path / "region"
    path.touch()
    lock = FileLock(str(path))
    with pytest.raises(RadixError, match="belongs to another living radix-server"):
        FileLock(str(path))
    lock.release()
    lock.release()
    FileLock(str(path)).release()


def test_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileLock(str(tmp_path / "absent"))


def test_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "region"
    path.touch()
    program = f"""
import os, sys
from radixshmem_core.ownership import FileLock
lock = FileLock({str(path)!r})
child_read, write = os.pipe()
read, child_write = os.pipe()
child = os.fork()
if child == 0:
    os.close(write)
    os.write(child_write, b"x")  # the fork hooks have run
    os.read(child_read, 1)  # lives until the parent lets go
    os._exit(0)
os.read(read, 1)
lock.release()
FileLock({str(path)!r}).release()
os.close(write)
os.waitpid(child, 0)
print("taken again")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "taken again\n"


def test_owner_is_released_by_its_death(tmp_path: Path) -> None:
    path = tmp_path / "region"
    path.touch()
    program = (
        "from radixshmem_core.ownership import FileLock; import os; "
        f"lock = FileLock({str(path)!r}); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program], timeout=30, check=True)
    FileLock(str(path)).release()


def test_region_files() -> None:
    assert region_file("/x") == "/dev/shm/x"
    assert region_file("/x", "/mnt/huge") == os.path.join("/mnt/huge", "x")
