# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""RDMA devices of this machine: opening one by its name, and how near it is."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .. import _core

__all__ = ["distance_to", "open_device", "split_port"]

_RDMA = Path("/sys/class/infiniband")
_NODES = Path("/sys/devices/system/node")
_LOCAL = 10  # the distance of a NUMA node to itself


def split_port(name: str) -> tuple[str, str]:
    """In "mlx5_0:2" that is "2"; "mlx5_0" names none."""
    device, _, port = name.partition(":")
    return device, port


def open_device(name: str, gid_idx: int) -> _core.VerbsDevice:
    """`name`: a device, or a device and a port of it ("mlx5_0:2").

    ValueError for a wrong device, port or GID index; ServerNotReady where there is no RDMA.
    """
    device, port = split_port(name)
    if port and not (port.isdecimal() and 0 < int(port) < 256):
        raise ValueError(f"{name} names no port of an RDMA device; use e.g. {device}:1")
    return _core.VerbsDevice.open(device, gid_idx, int(port or 1))


def distance_to(name: str) -> int:
    """From the CPUs that this process may use, as NUMA nodes have it; _LOCAL when nobody says."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        node = int((_RDMA / split_port(name)[0] / "device" / "numa_node").read_text())
        if node >= 0:
            distances = (_NODES / f"node{node}" / "distance").read_text().split()
            return min(int(distances[own]) for own in _own_nodes())
    return _LOCAL


def _own_nodes() -> list[int]:
    cpus = os.sched_getaffinity(0)
    nodes = {int(path.name[4:]): path for path in _NODES.glob("node[0-9]*")}
    return [n for n, path in nodes.items() if any((path / f"cpu{cpu}").exists() for cpu in cpus)]
