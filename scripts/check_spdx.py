# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Checks that every source file starts with the licence and copyright lines.

Usage: python scripts/check_spdx.py [ROOT]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_LINES = ("SPDX-License-Identifier: Apache-2.0", "Copyright The radixshmem authors")
_SUFFIXES = {".py", ".pyi", ".h", ".cc", ".cmake", ".toml", ".sh"}
_NAMES = {"CMakeLists.txt", "Makefile", ".clang-format"}


def is_source(path: Path) -> bool:
    if "third_party" in path.parts:
        return False
    return path.suffix in _SUFFIXES or path.name in _NAMES or path.parts[0] == ".ci"


def has_lines(text: str) -> bool:
    """Whether the two lines come first, after a #! line if there is one."""
    lines = text.splitlines()
    start = 1 if lines and lines[0].startswith("#!") else 0
    head = lines[start : start + len(_LINES)]
    return [line.lstrip("#/ ") for line in head] == list(_LINES)


def check(root: Path) -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = [Path(name) for name in listing.split("\0") if name]
    return [
        f"{path}: does not start with the two lines of CONTRIBUTING.md"
        for path in sorted(paths)
        if is_source(path)
        and (root / path).is_file()
        and (root / path).stat().st_size > 0
        and not has_lines((root / path).read_text(encoding="utf-8"))
    ]


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    problems = check(root)
    print("\n".join(problems) if problems else "licence lines: in every file")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
