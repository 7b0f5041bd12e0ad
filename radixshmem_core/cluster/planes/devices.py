# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Which devices a data plane may use: RDMA devices and network interfaces of this machine."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path
from typing import Literal

from ...errors import RadixError
from .base import PlaneConfig

__all__ = ["chosen_protocol", "interface_of", "rdma_devices"]

_RDMA = Path("/sys/class/infiniband")
_SIOCGIFADDR = 0x8915


def rdma_devices() -> list[str]:
    """Names as in transfer_dev, e.g. mlx5_0."""
    return sorted(path.name for path in _RDMA.iterdir()) if _RDMA.is_dir() else []


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def interface_of(address: str) -> str:
    """The interface with this IPv4 address; empty when there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in _interfaces():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return ""


def chosen_protocol(config: PlaneConfig) -> Literal["rdma", "tcp"]:
    """transfer_protocol, or what the devices allow. RadixError for devices that are not here."""
    present = rdma_devices()
    named = [device.split(":")[0] for device in config.transfer_dev]
    wanted = config.transfer_protocol
    known = present if wanted == "rdma" else present + _interfaces()
    for device in named:
        if device not in known:
            raise RadixError(
                f"transfer_dev names {device}, which is not here; RDMA devices: "
                f"{', '.join(present) or 'none'}; network interfaces: {', '.join(_interfaces())}"
            )
    if wanted == "rdma" and not present:
        raise RadixError(
            f"transfer_protocol is rdma, but there is no RDMA device in {_RDMA}; load the driver "
            "(in a container: pass /dev/infiniband through), or take transfer_protocol tcp"
        )
    if wanted == "tcp":
        return "tcp"
    usable = present if not named else [device for device in named if device in present]
    return "rdma" if usable else "tcp"
