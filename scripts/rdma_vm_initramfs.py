# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Makes the initramfs of scripts/rdma_vm.sh: busybox, an init script, kernel modules in order.

Usage: python scripts/rdma_vm_initramfs.py MODULE_TREE BUSYBOX INIT OUTPUT MODULE...
"""

from __future__ import annotations

import gzip
import lzma
import re
import sys
from pathlib import Path

_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")
_FOLDERS = ("bin", "dev", "proc", "sys", "modules", "host", "extra", "upper", "root")


def find_modules(tree: Path) -> dict[str, Path]:
    """Name -> file, with the underscores that dependencies are written with."""
    return {
        path.name.split(".ko")[0].replace("-", "_"): path
        for path in tree.rglob("*.ko*")
        if path.is_file()
    }


def read_module(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def in_order(wanted: list[str], files: dict[str, Path]) -> dict[str, bytes]:
    """The modules and all that they depend on; dependencies first. Built-in ones have no file."""
    loaded: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in loaded or name not in files:
            return
        data = read_module(files[name])
        match = _DEPENDS.search(data)
        for dependency in match.group(1).decode().split(",") if match else []:
            add(dependency.replace("-", "_"))
        loaded[name] = data

    for name in wanted:
        add(name)
    return loaded


class Archive:
    """A cpio archive in the format that the kernel unpacks ("newc")."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._inode = 0

    def add(
        self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)
    ) -> None:
        self._inode += 1
        path = name.encode() + b"\0"
        fields = (self._inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
        header = "070701" + "".join(f"{field:08X}" for field in fields)
        for part in (header.encode() + path, data):
            self._bytes += part
            self._bytes += b"\0" * (-len(self._bytes) % 4)

    def finish(self) -> bytes:
        self.add("TRAILER!!!", 0)
        return bytes(self._bytes)


def main(tree: str, busybox: str, init: str, output: str, *wanted: str) -> None:
    modules = in_order([name.replace("-", "_") for name in wanted], find_modules(Path(tree)))
    archive = Archive()
    for folder in _FOLDERS:
        archive.add(folder, 0o40755)
    archive.add("dev/console", 0o20600, device=(5, 1))
    archive.add("bin/busybox", 0o100755, Path(busybox).read_bytes())
    archive.add("bin/sh", 0o120777, b"busybox")
    archive.add("init", 0o100755, Path(init).read_bytes())
    archive.add("modules/order", 0o100644, "".join(f"{name}\n" for name in modules).encode())
    for name, data in modules.items():
        archive.add(f"modules/{name}.ko", 0o100644, data)
    Path(output).write_bytes(gzip.compress(archive.finish(), 1))


if __name__ == "__main__":
    if len(sys.argv) < 6:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
