#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Fetches the sources of SGLang versions that the contract tests read; nothing is installed.

Usage: scripts/sglang_sources.py FOLDER VERSION...

pip downloads each wheel, and the Python files of its sglang/srt are unpacked into FOLDER/VERSION.
A version that is there already is left as it is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

_PART = "sglang/srt/"


def main(folder: Path, versions: list[str]) -> None:
    for version in versions:
        target = folder / version
        if target.is_dir():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            unpack(download(version, Path(scratch)), target)


def download(version: str, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(scratch), f"sglang=={version}"]
    if subprocess.run(command).returncode != 0:
        sys.exit(f"pip cannot download the wheel of sglang {version}: see above, and try again")
    (wheel,) = scratch.glob("*.whl")
    return wheel


def unpack(wheel: Path, target: Path) -> None:
    """All or nothing: `target` appears when it is complete."""
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with zipfile.ZipFile(wheel) as files:
        names = [n for n in files.namelist() if n.startswith(_PART) and n.endswith(".py")]
        if not names:
            sys.exit(f"{wheel.name} has no Python files in {_PART}")
        files.extractall(part, names)
    part.rename(target)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
