# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the machine must offer before a server starts: a group, a directory, memory, a socket."""

from __future__ import annotations

import errno
import grp
import logging
import os
import resource
import socket
import stat

from . import _core
from .config import ServerConfig
from .errors import RadixError
from .ownership import SHM_DIRECTORY
from .rpc import socket_path
from .sizes import format_size

__all__ = [
    "access_of_group",
    "check_directories",
    "check_memory",
    "clear_stale_socket",
    "note_memlock",
    "raise_descriptor_limit",
]

_log = logging.getLogger("radixshmem.server")

_OTHER_DESCRIPTORS = 128  # what the process may open later for its own ends
_CLUSTER_DESCRIPTORS = 4096  # to and from 1,023 peers, and 1,024 index streams of processes


def access_of_group(group: str) -> tuple[int, int]:
    """(file mode, gid or -1) of everything the server makes."""
    if not group:
        return 0o600, -1
    try:
        return 0o660, grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise ValueError(f"group is {group!r}, but this machine has no such group") from error


def check_directories(config: ServerConfig, shm_directory: str = SHM_DIRECTORY) -> str:
    """The path of the control socket, after a check that all directories can be written."""
    path = socket_path(config.endpoint, config.name)
    wanted = {shm_directory: "shared memory", os.path.dirname(path): "the control socket"}
    if config.hugepage_path:
        wanted[config.hugepage_path] = "hugepage_path"
    for directory, purpose in wanted.items():
        if not os.path.isdir(directory):
            fix = "mount hugetlbfs there" if purpose == "hugepage_path" else "create it"
            raise RadixError(f"{directory}, needed for {purpose}, is not a directory; {fix}")
        if not os.access(directory, os.W_OK | os.X_OK):
            raise RadixError(
                f"{directory}, needed for {purpose}, cannot be written by user {os.geteuid()}; "
                f"run `chmod u+rwx {directory}` as its owner, or choose another directory"
            )
    return path


def check_memory(config: ServerConfig, plan: _core.IndexPlan, slot_bytes: int) -> None:
    """RadixError, naming what to raise, when slots and index do not fit the memory free now."""
    index_bytes = plan.region_bytes()
    slots = f"{format_size(slot_bytes)} of slots (data_bytes)"
    count = f"{plan.full_slots:,} slots" if plan.full_slots > 1 else "one slot or more"
    index = (
        f"{format_size(index_bytes)} of index for {count} (max_clients {plan.max_clients:,}, "
        f"max_pins {plan.max_pins:,})"
    )
    if config.hugepage_path and slot_bytes:
        _core.check_room(f"{config.name}: {slots} need", slot_bytes, config.hugepage_path)
        slot_bytes = 0
    parts = f"{slots} and {index} need" if slot_bytes else f"{index} needs"
    _core.check_room(f"{config.name}: {parts}", slot_bytes + index_bytes, "")


def note_memlock(config: ServerConfig) -> None:
    """A line for whoever looks for why slots cannot be registered with a GPU or a NIC."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    size = config.slot_region_bytes or 0
    if limit != resource.RLIM_INFINITY and limit < size:
        _log.debug(
            "memlock limit is %s, below data_bytes: registering the slots with a GPU or a NIC "
            "needs `ulimit -l unlimited`",
            format_size(limit),
        )


def raise_descriptor_limit(max_clients: int, in_cluster: bool) -> None:
    """Let this process open two descriptors per client, its connection and a pidfd, and those of a
    cluster."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(os.listdir("/proc/self/fd")) + 2 * max_clients + _OTHER_DESCRIPTORS
    if in_cluster:
        wanted += _CLUSTER_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed < wanted:
        _log.warning(
            "%d open files are allowed, %d clients%s may need %d: raise the limit (`ulimit -Hn`)",
            max(soft, allowed),
            max_clients,
            " and a cluster" if in_cluster else "",
            wanted,
        )


def clear_stale_socket(path: str) -> None:
    """Remove the socket file that a dead server left. RadixError if anybody answers there."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise RadixError(f"{path} exists and is not a socket; remove it or choose another endpoint")
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(1.0)
        probe.connect(path)
    except OSError as error:
        if error.errno not in (errno.ECONNREFUSED, errno.ENOENT):
            raise RadixError(
                f"cannot tell whether a server listens at {path} ({error}); "
                "remove it or choose another endpoint"
            ) from error
    else:
        raise RadixError(
            f"another server already answers at {path}; stop it or choose another endpoint"
        )
    finally:
        probe.close()
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RadixError(
            f"cannot remove the stale socket {path} ({error.strerror}); remove it as its owner or "
            "choose another endpoint"
        ) from error
