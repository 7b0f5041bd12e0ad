# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The status of a server as plain data: what `radix-server status --json` prints."""

from __future__ import annotations

from typing import Any

import msgspec

from .messages import Info
from .regions import Regions
from .values import ComponentType

__all__ = ["hit_ratio", "status_line", "status_report"]

# Areas of the index region as `Index.stats` names them: (what, in use, reserved, detail).
_INDEX_AREAS = (
    ("segments", "arena_bytes_in_use", "arena_bytes_reserved", "hashes and slots of blocks"),
    ("table", "table_bytes_in_use", "table_bytes_reserved", "first hash -> segment"),
    ("side blocks", "side_bytes_in_use", "side_bytes_reserved", "SWA and MAMBA slots"),
    ("owner words", "owner_bytes", "owner_bytes", "one word per slot"),
    ("pins", None, "pin_bytes", "pin tables of all clients"),
    ("change ring", None, "ring_bytes", "latest changes of the tree"),
)


def status_report(
    info: Info, regions: Regions | None, prefault: dict[str, int] | None, reaped: int
) -> dict[str, Any]:
    """Everything at once; `memory` and what follows is empty until there is a geometry."""
    report: dict[str, Any] = {
        "info": msgspec.to_builtins(info),
        "prefault": prefault,
        "memory": [],
        "index_bytes_per_block": None,
        "counters": {},
        "clients": [],
    }
    if regions is None:
        return report
    stats = regions.index.stats()
    report["memory"] = [*_slot_rows(regions), *_index_rows(stats)]
    blocks = stats["blocks"]
    report["index_bytes_per_block"] = stats["index_bytes_in_use"] / blocks if blocks else None
    report["counters"] = {
        **{key: value for key, value in stats.items() if "_bytes" not in key},
        "reaped_clients": reaped,
    }
    report["clients"] = regions.index.clients()
    return report


def _slot_rows(regions: Regions) -> list[dict[str, Any]]:
    rows = []
    for kind in ComponentType:
        total = regions.index.slots_total(kind)
        if total == 0:
            continue
        used = total - regions.index.slots_free(kind)
        stride = regions.store.pool(kind).slot_bytes if regions.store is not None else 0
        rows.append(
            {
                "what": f"{kind.name} slots",
                "used_bytes": used * stride,
                "reserved_bytes": total * stride,
                "detail": f"{used:,} of {total:,} slots, {stride:,} B each",
            }
        )
    return rows


def _index_rows(stats: dict[str, int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "what": f"index {what}",
            "used_bytes": None if used is None else stats[used],
            "reserved_bytes": stats[reserved],
            "detail": detail,
        }
        for what, used, reserved, detail in _INDEX_AREAS
    ]
    rest = stats["region_bytes"] - sum(row["reserved_bytes"] for row in rows)
    rows.append(
        {
            "what": "index rest",
            "used_bytes": None,
            "reserved_bytes": rest,
            "detail": "clients, undo log, room for a rebuild",
        }
    )
    rows.append(
        {
            "what": "index in all",
            "used_bytes": stats["index_bytes_in_use"],
            "reserved_bytes": stats["region_bytes"],
            "detail": "the index region",
        }
    )
    return rows


def hit_ratio(counters: dict[str, int]) -> float | None:
    """Blocks found per block asked for; None when nothing was asked."""
    queried = counters.get("queried_blocks", 0)
    return counters["hit_blocks"] / queried if queried else None


def status_line(report: dict[str, Any]) -> str:
    """One line for the log."""
    counters = report["counters"]
    ratio = hit_ratio(counters)
    slots = "; ".join(row["detail"] for row in report["memory"] if row["what"].endswith("slots"))
    return (
        f"{report['info']['index_name']}: {slots}; {counters['blocks']:,} blocks, "
        f"{len(report['clients'])} clients, hit ratio {'-' if ratio is None else f'{ratio:.3f}'}"
    )
