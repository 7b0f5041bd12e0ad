# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Machines for a cluster on this one: a network and a mount namespace each, or only loopback.

With the privileges for it (root), each machine has its own network namespace, a cable to a bridge,
an address, and a /dev/shm that no other machine sees. Without, all share this machine's loopback.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Machine", "can_isolate", "machines"]

_NETWORK = "10.79.0"
_SHM_BYTES = 512 << 20


@dataclass(frozen=True)
class Machine:
    """One node: where it is reached, and how a command is run on it."""

    number: int
    address: str
    first: tuple[str, ...]
    """Before the first command, whose process then stands for the machine."""
    isolated: bool

    def boot(self, command: Sequence[str]) -> list[str]:
        """The first command; its /dev/shm is new."""
        if not self.isolated:
            return list(command)
        mount = f'mount -t tmpfs -o size={_SHM_BYTES} tmpfs /dev/shm && exec "$@"'
        return [*self.first, "sh", "-c", mount, "sh", *command]

    def join(self, pid: int, command: Sequence[str]) -> list[str]:
        """A further command on the machine that the process `pid` stands for."""
        if not self.isolated:
            return list(command)
        return ["nsenter", "-t", str(pid), "-m", "-n", *command]


@contextlib.contextmanager
def machines(count: int, isolated: bool) -> Iterator[list[Machine]]:
    """`count` machines, and what connects them, for as long as the block lasts."""
    if not isolated:
        yield [Machine(number, "127.0.0.1", (), False) for number in range(count)]
        return
    prefix = f"rx{os.getpid()}"
    names = [f"{prefix}n{number}" for number in range(count)]
    with contextlib.ExitStack() as undo:
        switch = _namespace(f"{prefix}s", undo)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        made = []
        for number, name in enumerate(names):
            _namespace(name, undo)
            address = f"{_NETWORK}.{number + 1}"
            _connect(switch, name, f"port{number}", address)
            unshare = ("unshare", "--mount", "--propagation", "private")
            first = ("ip", "netns", "exec", name, *unshare)
            made.append(Machine(number, address, first, True))
        yield made


def can_isolate() -> str:
    """Why there can be no namespaces here; empty when there can."""
    if os.geteuid() != 0:
        return "not root"
    missing = [tool for tool in ("ip", "unshare", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"no {', '.join(missing)}"
    probe = f"rx{os.getpid()}probe"
    try:
        _run("ip", "netns", "add", probe)
        _run("ip", "netns", "del", probe)
    except RuntimeError as error:
        return str(error)
    return ""


def _namespace(name: str, undo: contextlib.ExitStack) -> str:
    _run("ip", "netns", "add", name)
    undo.callback(_run, "ip", "netns", "del", name)
    _run("ip", "-n", name, "link", "set", "lo", "up")
    return name


def _connect(switch: str, name: str, port: str, address: str) -> None:
    _run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "eth0", "netns", name)
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
    _run("ip", "-n", name, "link", "set", "eth0", "up")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
