# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The status of a server as plain data: what `radix-server status --json` prints."""

from __future__ import annotations

from typing import Any

import msgspec

from .messages import Info
from .plan import round_up
from .regions import Regions
from .values import ComponentType

__all__ = ["hit_ratio", "status_line", "status_report"]

# Areas of the index region as `Index.stats` names them: <key>_bytes, and <key>_used_bytes where
# something smaller than the area is in use.
_INDEX_AREAS = {
    "arena": "segments: hashes and slots of blocks",
    "table": "hash of a segment's first block -> segment",
    "owners": "one word per slot",
    "side": "SWA and MAMBA slots of segments",
    "pins": "pins of all clients",
    "clients": "client table and counters",
    "ring": "change ring",
    "undo_log": "undo log of the writer",
    "scratch": "room for a rebuild",
    "reserved": "peer table and directory, for a cluster",
    "other": "headers, page table, identity",
}
_PER_BLOCK_AREAS = ("arena", "table", "owners")


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
    report["index_bytes_per_block"] = _per_block(stats, regions.index.total_blocks())
    report["counters"] = {
        "blocks": regions.index.total_blocks(),
        "segments": regions.index.total_radix_nodes(),
        **{key: value for key, value in stats.items() if not key.endswith("_bytes")},
        "reaped_clients": reaped,
    }
    report["clients"] = regions.index.clients()
    return report


def _slot_rows(regions: Regions) -> list[dict[str, Any]]:
    rows = []
    align = regions.identity.geometry["slot_align"]
    for kind in ComponentType:
        pool = regions.identity.geometry["pools"].get(kind.name.lower())
        if pool is None:
            continue
        total = regions.index.slots_total(kind)
        used = total - regions.index.slots_free(kind)
        stride = round_up(pool["slot_bytes"], align) if regions.store is not None else 0
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
    return [
        {
            "what": f"index {area.replace('_', ' ')}",
            "used_bytes": stats.get(f"{area}_used_bytes"),
            "reserved_bytes": stats[f"{area}_bytes"],
            "detail": detail,
        }
        for area, detail in _INDEX_AREAS.items()
        if f"{area}_bytes" in stats
    ]


def _per_block(stats: dict[str, int], blocks: int) -> float | None:
    """Index bytes in use per cached block: segments, table, owner words."""
    if blocks == 0:
        return None
    return sum(stats[f"{area}_used_bytes"] for area in _PER_BLOCK_AREAS) / blocks


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
