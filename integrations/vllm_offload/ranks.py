# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the ranks of one engine tell each other when they start.

A rank knows the bytes of its own layers only, and the scheduler those of rank 0. Where a rank's
bytes lie in a slot depends on all of them, so the workers exchange them while they register their
KV caches, all at the same time. The slots are in the memory of one host: ranks elsewhere are found
out here, before anybody attaches.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata

__all__ = [
    "Handshake",
    "Host",
    "RankReport",
    "exchange_reports",
    "require_one_host",
    "require_one_server",
]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_GROUPS = ("get_tp_group", "get_pcp_group", "get_pp_group")  # each inside the one that follows


@dataclass(frozen=True, slots=True)
class Host:
    """A machine. Containers of one machine have names of their own, and one boot id."""

    name: str
    boot_id: str

    @classmethod
    def here(cls) -> Host:
        return cls(socket.gethostname(), _BOOT_ID.read_text(encoding="ascii").strip())


@dataclass(frozen=True, slots=True)
class RankReport:
    rank: int
    host: Host
    group_bytes: tuple[int, ...]  # of one block, by group
    layers: tuple[tuple[str, ...], ...]  # names, by group
    facts: tuple[str, ...] = ()  # what else the bytes depend on: attention backends, draft groups


def exchange_reports(mine: RankReport, world_size: int) -> list[RankReport]:
    """The reports of all ranks, by rank. Every worker of the engine has to call it.

    ValueError when vLLM does not let the ranks talk, or some are missing.
    """
    reports = [mine]
    if world_size > 1:
        for name in _GROUPS:
            group = getattr(parallel_state, name)() if hasattr(parallel_state, name) else None
            if group is not None and group.world_size > 1:
                reports = _gather(reports, group)
    reports.sort(key=lambda report: report.rank)
    ranks = [report.rank for report in reports]
    if ranks != list(range(world_size)):
        raise ValueError(
            f"rank {mine.rank} learned the KV cache sizes of ranks {ranks}, and the engine has "
            f"{world_size} ranks: radixshmem knows no way to place this kind of parallelism in a "
            "slot"
        )
    return reports


def _gather(reports: list[RankReport], group: Any) -> list[RankReport]:
    gathered: list[list[RankReport]] = [[] for _ in range(group.world_size)]
    torch.distributed.all_gather_object(gathered, reports, group=group.cpu_group)
    return [report for part in gathered for report in part]


def require_one_host(hosts: Sequence[tuple[str, Host]]) -> None:
    """ValueError naming both hosts, for (who, host) pairs that are not on one machine."""
    first, host = hosts[0]
    for who, other in hosts[1:]:
        if other.boot_id != host.boot_id:
            raise ValueError(
                f"{first} runs on host {host.name!r} and {who} on {other.name!r}: the slots of "
                "radixshmem are memory of one host, so the scheduler and all ranks of an engine "
                "must be on one; use tensor and pipeline sizes that fit a host, and data "
                "parallelism over hosts"
            )


@dataclass(frozen=True)
class Handshake(KVConnectorHandshakeMetadata):
    """Where a process of an engine is, and which life of the server it has attached to."""

    host: Host
    nonce: int

    @classmethod
    def of(cls, nonce: int) -> Handshake:
        return cls(Host.here(), nonce)


def require_one_server(mine: Handshake, ranks: Mapping[Any, object]) -> None:
    """ValueError for a rank whose slots are not the scheduler's: on another host, or unshared."""
    for rank, theirs in ranks.items():
        if not isinstance(theirs, Handshake):
            continue  # of another connector
        who = f"rank {rank} (pipeline, tensor)" if isinstance(rank, tuple) else f"rank {rank}"
        require_one_host([("the scheduler", mine.host), (who, theirs.host)])
        if theirs.nonce != mine.nonce:
            raise ValueError(
                f"{who} (in {theirs.host.name!r}) and the scheduler (in {mine.host.name!r}) have "
                "attached to different radix-servers of the same name, or to one that was "
                "restarted meanwhile: share one /dev/shm between their containers, and start again"
            )
