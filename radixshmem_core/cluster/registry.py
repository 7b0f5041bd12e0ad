# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The registry: which nodes are members, which rank each has, and the reset epochs.

It is asked in the background only; without it the known peers go on. No two clocks are compared: a
member lives as long as its lease (etcd) or its file lock (one machine).

Who may call: any thread. All calls block, each with a deadline of its own, and raise
`RegistryUnavailable` when the registry does not answer by then.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import threading
from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from ..errors import RadixError

__all__ = [
    "MAX_RANKS",
    "EpochFloor",
    "Member",
    "NameTaken",
    "RankOwner",
    "Registry",
    "RegistryOptions",
    "RegistryUnavailable",
    "check_registry_name",
    "choose_rank",
    "name_taken",
    "note_rank",
    "open_registry",
]

_log = logging.getLogger("radixshmem.cluster")

MAX_RANKS = 1023  # as many as the peer table has records
LEASE_S = 6.0

_FILE_SCHEME = "file://"
_ETCD_SCHEME = "etcd://"
_DEFAULT_CLUSTER = "default"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")


class NameTaken(RadixError):
    """Another living server has joined under this node name."""


class RegistryUnavailable(RadixError):
    """The registry does not answer; what is known of the cluster stays in use meanwhile."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One server that the registry lists."""

    node: str
    rank: int
    instance: int  # random, one for each life of a server process
    address: str
    port: int
    joined_s: float  # the node's own wall clock, for people to read only


class Registry(Protocol):
    """One server's view of the registry."""

    def join(self, node: str, instance: int, address: str, port: int) -> Member:
        """Become a member, with the rank that the name had before if nobody else took it.

        NameTaken if another living instance has the name; where that can be told only by its
        lease, this waits until it should have run out. May be repeated, e.g. after `renew` has
        returned False; then the rank may be another one.
        """

    def renew(self) -> bool:
        """Keep the registration, every third of the lease. False: it is lost, join again."""

    def members(self) -> list[Member]:
        """All living members by rank, this one included."""

    def members_and_epochs(self) -> tuple[list[Member], dict[str, int]]:
        """`members`, and the epochs that are not 0."""

    def epoch(self, key: str) -> int:
        """The counter of `key`; 0 before it was raised. It never falls while a member lives."""

    def raise_epoch(self, key: str, above: int = 0) -> int:
        """Add one to the counter of `key`, or to `above` if that is more; the new value."""

    def wait_change(self, timeout_s: float) -> bool:
        """Wait until something has changed since the last listing. Only a hint: list anyway."""

    def leave(self) -> None:
        """End the registration; the rank stays reserved for the name."""

    def close(self) -> None:
        """Give back what this object holds. Without `leave` it looks like a crash to the others."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RegistryOptions:
    """How etcd is reached. The fields are named like the options of radix-server."""

    etcd_user: str = ""
    etcd_password_file: str = ""
    etcd_ca_file: str = ""
    etcd_cert_file: str = ""
    etcd_key_file: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class RankOwner:
    """The name for which a rank is reserved; `age` grows with each join."""

    node: str
    age: int


def open_registry(
    url: str,
    *,
    cluster_id: str = "",
    ttl_s: float = LEASE_S,
    options: RegistryOptions | None = None,
) -> Registry:
    """The registry at `url`: etcd://host:port[,host:port] or file:///path."""
    cluster_id = cluster_id or _DEFAULT_CLUSTER
    check_registry_name("cluster_id", cluster_id)
    if url.startswith(_FILE_SCHEME + "/"):
        from .file_registry import FileRegistry

        return FileRegistry(url[len(_FILE_SCHEME) :], cluster_id)
    if url.startswith(_ETCD_SCHEME):
        from .etcd_registry import EtcdRegistry

        endpoints = url[len(_ETCD_SCHEME) :].split(",")
        return EtcdRegistry(endpoints, cluster_id, ttl_s, options or RegistryOptions())
    raise ValueError(f"registry is {url!r}; use etcd://host:port[,host:port] or file:///path")


def check_registry_name(what: str, name: str) -> None:
    """ValueError for a node name or cluster id that cannot be a key or a file name."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{what} is {name!r}; it must be up to 200 letters, digits, '_', '-' and '.', not "
            f"starting with '-' or '.': choose another with --{what.replace('_', '-')}"
        )


def name_taken(holder: Member) -> NameTaken:
    return NameTaken(
        f"the node name {holder.node!r} is taken by a living server (rank {holder.rank}, "
        f"{holder.address}:{holder.port}); give each node its own name with --node-name"
    )


def choose_rank(
    node: str, owners: Mapping[int, RankOwner], living: Collection[int], last: int | None
) -> int:
    """The rank for `node`: its own, else a fresh one, else that of the node gone longest.

    `living`: ranks of the other living members; `last`: the rank this server had before.
    """
    own = [rank for rank, owner in owners.items() if owner.node == node and rank not in living]
    if own:
        return min(own)
    if last is not None and last not in living and last not in owners:
        return last
    fresh = next((r for r in range(MAX_RANKS) if r not in owners and r not in living), None)
    if fresh is not None:
        return fresh
    gone = [rank for rank in range(MAX_RANKS) if rank not in living]
    if not gone:
        raise RadixError(
            f"the cluster has {MAX_RANKS} living members, all that there can be; start the node "
            "in another cluster with --cluster-id"
        )
    return min(gone, key=lambda rank: owners[rank].age)


def note_rank(node: str, before: int | None, now: int) -> None:
    """Say so when a node that joins again gets another rank than it had."""
    if before is not None and before != now:
        _log.warning(
            "node %r has rank %d now: its rank %d was given to another node meanwhile, e.g. "
            "because the registry had lost its data",
            node,
            now,
            before,
        )


class EpochFloor:
    """The highest epochs ever seen here, so that a registry that lost its data is told again."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._guard = threading.Lock()

    def raise_to(self, stored: Mapping[str, int]) -> dict[str, int]:
        """Take in what the registry says; what holds: for each key the highest ever seen."""
        with self._guard:
            for key, epoch in stored.items():
                self._seen[key] = max(epoch, self._seen.get(key, 0))
            return dict(self._seen)
