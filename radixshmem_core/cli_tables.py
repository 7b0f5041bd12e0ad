# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Tables of the `radix-server` command, readable at 80 columns."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

from .report import hit_ratio
from .sizes import format_size
from .values import Geometry

__all__ = [
    "client_table",
    "cluster_table",
    "counter_table",
    "memory_table",
    "node_table",
    "pin_table",
    "rate_table",
    "segment_table",
    "state_table",
]

_COUNTERS_PER_ROW = 2
_DUMPED_SLOTS = 4
_MODE_NOTES = {
    "waiting": " for the first client to say what a block is",
    "failed": "; a client may try again, with the same or another geometry",
}


def _table(title: str, *columns: str, text_columns: tuple[int, ...] = (0,)) -> Table:
    """Numbers to the right, the columns numbered in `text_columns` to the left."""
    table = Table(
        title=f"\n[bold]{title}[/]",
        title_justify="left",
        title_style="",
        box=None,
        pad_edge=False,
        min_width=len(title),
        show_header=any(columns),
    )
    for number, column in enumerate(columns):
        justify: Literal["left", "right"] = "left" if number in text_columns else "right"
        table.add_column(column, justify=justify, overflow="fold")
    return table


def state_table(report: dict[str, Any]) -> Table:
    """Mode, uptime, geometry and what is going on."""
    info = report["info"]
    table = _table(info["index_name"], "", "", text_columns=(0, 1))
    table.add_row("mode", info["mode"] + _MODE_NOTES.get(info["mode"], ""))
    if info["last_error"]:
        table.add_row("last error", escape(info["last_error"]))
    table.add_row("uptime", f"{info['uptime']:.0f} s")
    table.add_row("version", info["version"])
    geometry = info["geometry"]
    if geometry is not None:
        table.add_row("block", f"{geometry['block_size']} tokens")
        if geometry.get("fingerprint"):
            table.add_row("fingerprint", escape(geometry["fingerprint"]))
    ratio = hit_ratio(report["counters"])
    if ratio is not None:
        table.add_row("hit ratio", f"{ratio:.3f} of the blocks asked for since the start")
    prefault = report["prefault"]
    if prefault is not None and prefault["done_bytes"] < prefault["total_bytes"]:
        done, total = prefault["done_bytes"], prefault["total_bytes"]
        table.add_row("touching memory", f"{format_size(done)} of {format_size(total)}")
    return table


def memory_table(report: dict[str, Any]) -> Table:
    """Where the bytes are: slots, index in use and reserved, tables, pins, per block."""
    table = _table("memory", "", "in use", "reserved", "what it holds", text_columns=(0, 3))
    for row in report["memory"]:
        used = row["used_bytes"]
        table.add_row(
            row["what"],
            "" if used is None else format_size(used),
            format_size(row["reserved_bytes"]),
            row["detail"],
        )
    per_block = report["index_bytes_per_block"]
    if per_block is not None:
        least = _blocks_to_tell(report["counters"]["full_slots"])
        told = report["counters"]["blocks"] >= least
        table.add_row(
            "index per block",
            f"{per_block:.1f} B" if told else "-",
            "",
            "segments, table, owner words" if told else f"told from {least:,} blocks on",
        )
    return table


def _blocks_to_tell(full_slots: int) -> int:
    """Below so many blocks what an empty index has anyway would make up the share of a block."""
    return max(1000, full_slots // 10)


def counter_table(counters: dict[str, int]) -> Table:
    names = tuple(range(0, 2 * _COUNTERS_PER_ROW, 2))
    table = _table("counters", *[""] * (2 * _COUNTERS_PER_ROW), text_columns=names)
    cells = [cell for key, value in counters.items() for cell in (key, f"{value:,}")]
    for begin in range(0, len(cells), 2 * _COUNTERS_PER_ROW):
        table.add_row(*cells[begin : begin + 2 * _COUNTERS_PER_ROW])
    return table


def client_table(clients: list[dict[str, int]]) -> Table:
    table = _table("clients", "client", "pid", "group", "state", "pins", "slots", "generation")
    for entry in clients:
        who = "server" if entry["client"] == 0 else str(entry["client"])
        table.add_row(
            who,
            str(entry["pid"]),
            f"{entry['group']:x}",
            "alive" if entry["alive"] else "dead",
            f"{entry['pins']:,}",
            f"{entry['slots']:,}",
            str(entry["generation"]),
        )
    return table


def pin_table(pins: list[dict[str, int]]) -> Table:
    table = _table("pins", "client", "segment", "start", "depth", "mask")
    for pin in pins:
        table.add_row(*(str(pin[key]) for key in ("client", "segment", "start", "depth", "mask")))
    return table


def segment_table(segments: list[dict[str, Any]], total: int) -> Table:
    title = f"segments ({len(segments)} of {total})"
    table = _table(title, "id", "start", "count", "parent", "child", "touch", "hash", "slots")
    for segment in segments:
        slots = list(segment["slots"])
        shown = ",".join(str(slot) for slot in slots[:_DUMPED_SLOTS])
        table.add_row(
            str(segment["id"]),
            str(segment["start"]),
            str(segment["count"]),
            str(segment["parent"]),
            str(segment["children"]),
            str(segment["touch"]),
            f"{segment['first_hash']:016x}",
            shown + ("..." if len(slots) > _DUMPED_SLOTS else ""),
        )
    return table


def rate_table(earlier: dict[str, Any], now: dict[str, Any]) -> Table:
    """What happened between two reports, per second."""
    seconds = max(1e-3, now["info"]["uptime"] - earlier["info"]["uptime"])
    table = _table("per second", "", "")
    before, counters = earlier["counters"], now["counters"]
    for key, value in counters.items():
        change = value - before.get(key, 0)
        if change:
            table.add_row(key, f"{change / seconds:,.0f}")
    ratio = hit_ratio({key: value - before.get(key, 0) for key, value in counters.items()})
    if ratio is not None:
        table.add_row("hit ratio", f"{ratio:.3f}")
    return table


def node_table(report: dict[str, Any]) -> Table:
    """Members of a cluster, and where one's geometry differs from the own."""
    table = _table(
        "nodes", "rank", "node", "address", "state", "version", text_columns=(1, 2, 3, 4)
    )
    own = next((row for row in report["nodes"] if row["state"].startswith("self")), None)
    for row in report["nodes"]:
        state = row["state"]
        if state == "other geometry" and own is not None:
            state += f": {_difference(own, row)}"
        if row.get("error"):
            state += f": {row['error']}"
        table.add_row(
            str(row["rank"]), row["node"], row["address"], escape(state), row.get("version", "")
        )
    return table


def cluster_table(report: dict[str, Any]) -> Table:
    """What a server knows of its cluster, and what it does there. How peers' indexes are read is
    not here: each client reads them itself, see RadixClient.peer_connections."""
    table = _table("cluster", "", "", text_columns=(0, 1))
    table.add_row("node", f"{report['node']}, rank {report['rank']}, {report['address']}")
    failure = report["registry_error"]
    table.add_row("registry", escape(report["registry"] + (f": {failure}" if failure else "")))
    states = Counter(row["state"] for row in report["nodes"])
    table.add_row("members", ", ".join(f"{count} {state}" for state, count in states.items()))
    plane, why = report["data_plane"], report["data_plane_reason"]
    if why:
        table.add_row("data plane", escape(f"{plane} ({why})" if plane else why))
    if report["attach_error"]:
        table.add_row("not shared", escape(report["attach_error"]))
    for row in report["slots_of_peers"]:
        table.add_row(f"slots of rank {row['rank']}", escape(_readers(row)))
    served = report["verbs"]
    if served["devices"] or served["error"]:
        text = served["error"] or "; ".join(served["devices"])
        table.add_row("read over RDMA", escape(text))
    if "directory" in report:
        table.add_row("reset epoch", str(report["epoch"]))
        for part in ("directory", "leases", "pulls"):
            figures = [f"{key} {value:,}" for key, value in report[part].items() if value]
            table.add_row(part, ", ".join(figures) or "-")
    return table


def _readers(row: dict[str, Any]) -> str:
    used = [f"{count} x {name}" for name, count in row["readers"].items()]
    return ", ".join(used or ["not read now"]) + (f" ({row['why']})" if row["why"] else "")


def _difference(own: dict[str, Any], other: dict[str, Any]) -> str:
    mine, theirs = own.get("geometry"), other.get("geometry")
    if mine is None or theirs is None:
        return "one of both has none"
    lines = Geometry.from_dict(mine).difference(
        Geometry.from_dict(theirs), mine="here", theirs="there"
    )
    if lines:
        return " ".join(lines.split())
    if own.get("epoch") != other.get("epoch"):
        return f"reset epoch {own.get('epoch')} here, {other.get('epoch')} there"
    return "another protocol or layout version"
