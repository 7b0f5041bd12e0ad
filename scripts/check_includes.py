# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Checks that every room of csrc includes only itself and rooms before it.

The order is the `a < {b, c} < d` line of csrc/README.md. Checks also that CMakeLists.txt builds
the same rooms in that order, and that only bindings/ includes pybind11 or Python.

Usage: python scripts/check_includes.py [ROOT]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_ORDER = re.compile(r"^(?:\w+|\{[^}]+\})(?: < (?:\w+|\{[^}]+\}))+$", re.MULTILINE)
_INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)
_ROOMS_OF_CMAKE = re.compile(r"set\(RADIX_ROOMS ([^)]+)\)")
_PYTHON_HEADERS = re.compile(r"^(pybind11/|Python\.h)")
_FOREIGN_HEADERS = re.compile(r"^(torch/|ATen/|cuda)")
_NOT_ROOMS = {"tests", "fuzz", "bench", "third_party"}


def read_order(csrc: Path) -> dict[str, int]:
    """Room -> level; rooms of one level do not see each other."""
    match = _ORDER.search((csrc / "README.md").read_text(encoding="utf-8"))
    if match is None:
        raise SystemExit(f"{csrc / 'README.md'}: no line of the form 'a < {{b, c}} < d'")
    return {
        room: level
        for level, part in enumerate(match.group().split(" < "))
        for room in re.findall(r"\w+", part)
    }


def check_file(path: Path, room: str, order: dict[str, int]) -> list[str]:
    """One line per forbidden include of this file."""
    problems = []
    for quote, target in _INCLUDE.findall(path.read_text(encoding="utf-8")):
        if _FOREIGN_HEADERS.match(target):
            problems.append(f"{path}: includes {target}; nothing in csrc may")
        elif _PYTHON_HEADERS.match(target) and room != "bindings":
            problems.append(f"{path}: includes {target}; only bindings/ may")
        elif quote == '"':
            other = target.split("/")[0]
            if other in order and other != room and order[other] >= order[room]:
                problems.append(f"{path}: {room}/ includes {target}, which is not before it")
            elif other not in order and other != "xxhash":
                problems.append(f"{path}: includes {target}; write the path from csrc on")
    return problems


def check_cmake(root: Path, order: dict[str, int]) -> list[str]:
    match = _ROOMS_OF_CMAKE.search((root / "CMakeLists.txt").read_text(encoding="utf-8"))
    built = match.group(1).split() if match else []
    wanted = [room for room in order if room != "bindings"]
    if built == wanted:
        return []
    return [f"CMakeLists.txt: RADIX_ROOMS is {built}, csrc/README.md has {wanted}"]


def check(root: Path) -> list[str]:
    csrc = root / "csrc"
    order = read_order(csrc)
    problems = check_cmake(root, order)
    for folder in sorted(path for path in csrc.iterdir() if path.is_dir()):
        if folder.name in _NOT_ROOMS:
            continue
        if folder.name not in order:
            problems.append(f"{folder}: not in the order of csrc/README.md")
            continue
        for path in sorted([*folder.rglob("*.h"), *folder.rglob("*.cc")]):
            problems += check_file(path, folder.name, order)
    return problems


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    problems = check(root)
    print("\n".join(problems) if problems else "includes: in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
