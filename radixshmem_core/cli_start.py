# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`radix-server start`: a server in the foreground, its events on the terminal or as JSON lines."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import select
import signal
import sys
import threading
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from .config import ServerConfig
from .options import config_from_flags
from .rpc import socket_path
from .server import RadixServer
from .sizes import format_size

__all__ = ["start"]

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # HUP: the terminal is closed
_LOOK_S = 1.0


def start(arguments: argparse.Namespace) -> int:
    """Run the server that the flags describe until a stop signal. Returns the exit code."""
    config = config_from_flags(arguments)
    _set_up_log(arguments.verbose, plain=arguments.json)
    stopped = _stop_signals()
    printer: JsonEvents | TextEvents = JsonEvents() if arguments.json else TextEvents(config)
    with printer, RadixServer(config, on_event=printer.show) as server:
        while not select.select([stopped], [], [], _LOOK_S)[0]:
            if not server.running:
                print("radix-server: the server ended by itself; see its log", file=sys.stderr)
                return 2
        with contextlib.suppress(OSError, SystemExit):  # nobody reads stdout any more
            printer.show("stopping", {"name": config.name})
    return 0


def _stop_signals() -> int:
    """A descriptor that becomes readable with the first stop signal, in whatever thread it comes.

    Not sigwait: libraries have threads by now that would take the signal.
    """
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in _STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, lambda *_: None)
    return read


def _set_up_log(verbose: bool, *, plain: bool) -> None:
    level = logging.DEBUG if verbose else logging.WARNING
    if plain or not sys.stderr.isatty():
        handler: logging.Handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        level = min(level, logging.INFO)
    else:
        handler = RichHandler(console=Console(stderr=True), show_path=False)
    logger = logging.getLogger("radixshmem")
    logger.addHandler(handler)
    logger.setLevel(level)


class JsonEvents:
    """One JSON object per line on stdout."""

    def __init__(self) -> None:
        self._guard = threading.Lock()

    def __enter__(self) -> JsonEvents:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show(self, what: str, figures: dict[str, Any]) -> None:
        with self._guard:
            print(json.dumps({"event": what, **figures}), flush=True)


class TextEvents:
    """Lines for a person; the prefault as a bar on a terminal, as a line per tenth elsewhere."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._console = Console(highlight=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("touching memory"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._bar = self._progress.add_task("prefault", total=None, visible=False)
        self._tenths = 0

    def __enter__(self) -> TextEvents:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, what: str, figures: dict[str, Any]) -> None:
        if what == "prefault":
            self._show_prefault(figures["done_bytes"], figures["total_bytes"])
        else:
            self._console.print(self._line(what, figures))

    def _line(self, what: str, figures: dict[str, Any]) -> str:
        config = self._config
        size = config.slot_region_bytes
        budget = "no slots" if size is None else f"{format_size(size)} for slots"
        if what == "waiting":
            path = socket_path(config.endpoint, config.name)
            return f"{config.name} waits for a client's geometry ({budget}), listening at {path}"
        if what == "configuring":
            return f"{config.name} got a geometry and reserves its memory"
        if what in ("ready", "adopted"):
            how = "is ready" if what == "ready" else "adopted its living clients and is ready"
            pools = ", ".join(
                f"{pool['num_slots']:,} {kind} slots of {pool['slot_bytes']:,} bytes"
                for kind, pool in figures["geometry"]["pools"].items()
            )
            return f"{config.name} {how}: {pools}"
        if what == "failed":
            return f"{config.name} could not take the geometry, waits anew: {figures['error']}"
        return f"{config.name} stops"

    def _show_prefault(self, done_bytes: int, total_bytes: int) -> None:
        if self._console.is_terminal:
            self._progress.update(
                self._bar,
                completed=done_bytes,
                total=total_bytes,
                visible=done_bytes < total_bytes,
            )
            return
        tenths = 10 * done_bytes // total_bytes
        if tenths > self._tenths:
            self._tenths = tenths
            done, total = format_size(done_bytes), format_size(total_bytes)
            self._console.print(f"{self._config.name} touched {done} of {total}")
