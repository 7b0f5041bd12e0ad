# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""radix-servers of one cluster on this machine, as processes that engines attach to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from e2e.harness import DEADLINE_S, eventually

from radixshmem_core.messages import Status, StatusReply
from radixshmem_core.rpc import ask, socket_path

__all__ = ["cluster_figures", "member_flags", "wait_live"]


def member_flags(registry: Path, node: str, transport: str) -> list[str]:
    """Flags of a `radix-server` whose peers' indexes are read over `transport`."""
    return [
        *("--registry", f"file://{registry}", "--node-name", node, "--settle-ms", "50"),
        *("--index-transport", transport, "--transfer-backend", "builtin"),
    ]


def cluster_figures(name: str) -> dict[str, Any]:
    """What `radix-server status NAME --json` has under `cluster`."""
    reply = ask(socket_path("", name), Status(), DEADLINE_S)
    assert isinstance(reply, StatusReply)
    figures: dict[str, Any] = reply.status["cluster"]
    return figures


def wait_live(*names: str) -> None:
    """Until each of these servers sees all of them, with indexes that may be read."""
    wanted = ["live"] * (len(names) - 1) + ["self"]
    for name in names:
        eventually(
            lambda n=name: sorted(row["state"] for row in cluster_figures(n)["nodes"]) == wanted,
            f"{name} reads all {len(names)} members",
        )
