# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The verbs that look at a server or at the index region of one, alive or dead."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from . import _core
from .cli_tables import (
    client_table,
    cluster_table,
    counter_table,
    memory_table,
    node_table,
    pin_table,
    rate_table,
    segment_table,
    state_table,
)
from .config import check_name
from .errors import RadixError, ServerNotReady
from .messages import Drain, Status, StatusReply
from .rpc import ProtocolError, ask, socket_path

__all__ = ["check", "drain", "dump", "nodes", "pins", "status", "top"]

_ASK_TIMEOUT_S = 10.0
_DRAIN_TIMEOUT_S = 120.0  # leases end by then
_CHECK_ADVICE = "docs/recovery.md says under Invariants what each is and what to do"


def status(arguments: argparse.Namespace) -> int:
    report = _ask_status(arguments)
    if arguments.json:
        _print_json(report)
        return 0
    console = Console()
    console.print(state_table(report))
    if "cluster" in report:
        console.print(cluster_table(report["cluster"]))
    if report["memory"]:
        console.print(memory_table(report))
        console.print(counter_table(report["counters"]))
        console.print(client_table(report["clients"]))
    return 0


def nodes(arguments: argparse.Namespace) -> int:
    report = _ask_status(arguments).get("cluster")
    if report is None:
        raise RadixError(
            f"{arguments.name} is in no cluster; start it with --registry to have peers"
        )
    if arguments.json:
        _print_json(report["nodes"])
    else:
        console = Console()
        console.print(node_table(report))
        if report["registry_error"]:
            console.print(f"\nregistry: {report['registry_error']}", markup=False)
    return 0


def drain(arguments: argparse.Namespace) -> int:
    check_name("name", arguments.name)
    path = socket_path(arguments.endpoint, arguments.name)
    ask(path, Drain(forget_geometry=arguments.forget_geometry), _DRAIN_TIMEOUT_S)
    after = "waits for a geometry" if arguments.forget_geometry else "serves this machine alone"
    if arguments.json:
        _print_json({"name": arguments.name, "drained": True})
    else:
        print(f"{arguments.name} is drained: it {after}")
    return 0


def top(arguments: argparse.Namespace) -> int:
    earlier = _ask_status(arguments)
    shown = 0
    console = Console()
    screen = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with screen or nullcontext():
        while True:
            time.sleep(arguments.interval)
            now = _ask_status(arguments)
            if arguments.json:
                _print_json({"before": earlier["counters"], "now": now})
            elif screen is not None:
                screen.update(_top_tables(earlier, now), refresh=True)
            else:
                console.print(_top_tables(earlier, now))
                console.file.flush()
            earlier = now
            shown += 1
            if shown == arguments.count:
                return 0


def _top_tables(earlier: dict[str, Any], now: dict[str, Any]) -> Group:
    tables = [state_table(now)]
    if now["memory"]:
        tables += [rate_table(earlier, now), client_table(now["clients"])]
    return Group(*tables)


def check(arguments: argparse.Namespace) -> int:
    with _opened(arguments.name, _core.Index.inspect) as index:
        violations = index.check(arguments.repair)
    if arguments.json:
        _print_json({"name": arguments.name, "ok": not violations, "violations": violations})
    else:
        for violation in violations:
            print(violation)
        count = len(violations)
        verdict = f"{count} violated; {_CHECK_ADVICE}" if count else "every invariant holds"
        print(f"{arguments.name}: {verdict}")
    return 1 if violations else 0


def dump(arguments: argparse.Namespace) -> int:
    with _opened(arguments.name, _core.Index.inspect) as index:
        segments = index.dump(arguments.limit)
        total = index.total_radix_nodes()
    if arguments.json:
        _print_json({"name": arguments.name, "total": total, "segments": segments})
    else:
        Console().print(segment_table(segments, total))
    return 0


def pins(arguments: argparse.Namespace) -> int:
    with _opened(arguments.name, lambda name: _core.Index.attach(name, "", True)) as index:
        held = index.pins()
        clients = index.clients()
    if arguments.json:
        _print_json({"name": arguments.name, "pins": held, "clients": clients})
    else:
        console = Console()
        console.print(client_table(clients))
        console.print(pin_table(held))
    return 0


def _ask_status(arguments: argparse.Namespace) -> dict[str, Any]:
    check_name("name", arguments.name)
    path = socket_path(arguments.endpoint, arguments.name)
    reply = ask(path, Status(), _ASK_TIMEOUT_S)
    if not isinstance(reply, StatusReply):
        raise ProtocolError(f"the radix-server answered {type(reply).__name__}, not its status")
    return reply.status


@contextmanager
def _opened(name: str, attach: Callable[[str], _core.Index]) -> Iterator[_core.Index]:
    """The index region itself; its server may be dead."""
    check_name("name", name)
    try:
        index = attach(name)
    except ServerNotReady as error:
        raise ServerNotReady(f"{name} has no index to look at: {error}") from error
    try:
        yield index
    finally:
        index.close()


def _print_json(value: object) -> None:
    print(json.dumps(value, default=int), flush=True)
