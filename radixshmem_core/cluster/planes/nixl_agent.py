# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""NIXL itself: whether it is here, its options, and an agent with the UCX backend.

The agent is made with the bindings, not with NIXL's own Python class, whose progress thread spins:
a core of every server for nothing. Ours waits for events, and looks every millisecond.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import uuid
from typing import Any

from ...errors import RadixError
from .base import Memory, PlaneConfig
from .devices import chosen_protocol, interface_of, rdma_devices

__all__ = ["bindings", "set_environment", "start_agent", "why_missing"]

_INSTALL = "run: pip install --no-deps nixl-cu12 (or scripts/build_nixl.sh)"  # torch is not needed
_PACKAGES = ("nixl_cu13", "nixl_cu12", "nixl")
_LIBRARIES = {"libssl.so.3": "libssl3"}  # not in the wheel
_PROGRESS_US = 1000
_PORTS = 16  # from transfer_port on


def _package() -> str:
    return next((name for name in _PACKAGES if importlib.util.find_spec(name) is not None), "")


def why_missing() -> str:
    """What is missing to use NIXL, with the command that brings it; empty: nothing."""
    if not _package():
        return f"none of the packages {', '.join(_PACKAGES)} is installed; {_INSTALL}"
    for library, package in _LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            return f"nixl needs {library}; run: apt-get install {package}"
    return ""


def bindings() -> Any:
    return importlib.import_module(f"{_package()}._bindings")


def set_environment(config: PlaneConfig, address: str) -> None:
    """UCX reads its options from there; what the user has set stays."""
    protocol = chosen_protocol(config)
    options = {"UCX_LOG_LEVEL": "error", "UCX_LOG_FILE": "stderr"}  # not on stdout
    if protocol == "tcp":
        # Beside the system's libibverbs the one of the wheel crashes when the process exits.
        options["UCX_MODULES"] = "^ib"
    if config.transfer_protocol:
        options["UCX_TLS"] = "rc" if protocol == "rdma" else "tcp"
    if config.transfer_port:
        options["UCX_TCP_PORT_RANGE"] = (
            f"{config.transfer_port}-{config.transfer_port + _PORTS - 1}"
        )
    if config.transfer_dev:
        present = rdma_devices()
        options["UCX_NET_DEVICES"] = ",".join(
            f"{device}:1" if device in present else device for device in config.transfer_dev
        )
    elif protocol == "tcp" and (interface := interface_of(address)):
        options["UCX_NET_DEVICES"] = interface
    for name, value in options.items():
        os.environ.setdefault(name, value)


def start_agent(memory: Memory) -> Any:
    nixl = bindings()
    options = nixl.nixlAgentConfig()
    options.useProgThread = True  # peers read without this process doing anything
    options.pthrDelay = _PROGRESS_US
    options.syncMode = nixl.NIXL_THREAD_SYNC_NONE
    try:
        agent = nixl.nixlAgent(f"radixshmem-{uuid.uuid4()}", options)
        backend = agent.createBackend("UCX", {})
        region = nixl.nixlRegDList(nixl.DRAM_SEG, [(memory.address, memory.data_bytes, 0, "")])
        agent.registerMem(region, [backend])
    except Exception as error:  # the bindings' own exceptions have no common base
        raise RadixError(
            f"nixl does not start with UCX over {memory.data_bytes} bytes of slots: {error}; for "
            "RDMA raise the memlock limit (ulimit -l unlimited)"
        ) from error
    return agent
