# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The RDMA devices that the built-in data plane moves slots over."""

from __future__ import annotations

import logging
from typing import NamedTuple

from ... import _core
from ...errors import RadixError
from ..rdma import distance_to, open_device, split_port
from .base import PlaneConfig
from .devices import chosen_protocol, rdma_devices

__all__ = ["Rail", "open_rails"]

_log = logging.getLogger("radixshmem.server")


class Rail(NamedTuple):
    """One device, and its number on the own responder."""

    name: str
    device: _core.VerbsDevice
    number: int


def open_rails(
    config: PlaneConfig, slots: memoryview | None = None, first_number: int = 0
) -> list[Rail]:
    """The devices of transfer_dev, those nearest to this process first; [] when none is asked for.

    With `slots` peers' slots are read straight to it; without, this only tries whether one works:
    RadixError when none does. One that does not work now is left out, and logged. ValueError for
    what is no device, or has no such GID.
    """
    rails: list[Rail] = []
    failure = ""
    for name in sorted(_names(config), key=distance_to):
        try:
            device = open_device(name, config.gid_idx)
            if slots is not None:
                device.add_destination(slots)
        except (RadixError, OSError) as error:
            failure = f"{name}: {error}"
            _log.warning("transfer_dev %s is left out: %s", name, error)
        else:
            rails.append(Rail(name, device, first_number + len(rails)))
    if failure and not rails and slots is None:
        raise RadixError(f"no device of transfer_dev works: {failure}")
    return rails


def _names(config: PlaneConfig) -> list[str]:
    if config.transfer_backend not in ("auto", "builtin") or config.transfer_protocol == "tcp":
        return []
    if config.transfer_backend == "builtin":
        return list(config.transfer_dev)
    if config.transfer_dev:
        chosen_protocol(config)  # RadixError for what is not here
    present = rdma_devices()  # others are network interfaces, for another plane
    return [name for name in config.transfer_dev if split_port(name)[0] in present]
