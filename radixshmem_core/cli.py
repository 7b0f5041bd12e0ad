# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The `radix-server` command: start a server, or look at one.

Exit codes: 0 done, 1 `check` found a violated invariant, 2 the request could not be carried out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from . import cli_start, cli_views
from ._version import __version__
from .errors import RadixError
from .options import add_config_flags, near_names

__all__ = ["main"]

_VERBS: dict[str, tuple[str, Callable[[argparse.Namespace], int]]] = {
    "start": ("run a server until SIGTERM, SIGINT or SIGHUP (the default)", cli_start.start),
    "status": ("show the state and the memory of a server", cli_views.status),
    "check": ("walk every invariant of an index", cli_views.check),
    "top": ("show the work of a server as it goes on", cli_views.top),
    "dump": ("list the segments of an index", cli_views.dump),
    "nodes": ("list the nodes of a server's cluster", cli_views.nodes),
    "drain": ("withdraw a node from its cluster, e.g. before an upgrade", cli_views.drain),
    "pins": ("list the pins and clients of an index", cli_views.pins),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0] not in _VERBS and arguments[0] not in _TOP_LEVEL):
        arguments.insert(0, "start")
    parser = _parser()
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unknown argument {unknown[0]}{_hint(unknown[0], parsed.verb)}")
    if parsed.verb != "start" and not _take_name(parsed):
        parser.error(f"{parsed.verb} needs the name of a server, e.g. {parsed.verb} /my_kv_cache")
    try:
        return _VERBS[parsed.verb][1](parsed)
    except (RadixError, ValueError, TimeoutError, OSError) as error:
        print(f"radix-server: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


_TOP_LEVEL = ("-h", "--help", "--version")
_verb_parsers: dict[str, argparse.ArgumentParser] = {}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="radix-server",
        allow_abbrev=False,
        description="Shared-memory KV cache index of one node. `radix-server --name /x "
        "--data-bytes 64G` starts a server; VERB --help lists the options of a verb.",
    )
    parser.add_argument("--version", action="version", version=f"radixshmem {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, (help_text, _) in _VERBS.items():
        sub = verbs.add_parser(verb, help=help_text, description=help_text, allow_abbrev=False)
        _verb_parsers[verb] = sub
        sub.add_argument("--json", action="store_true", help="print JSON instead of text")
        if verb == "start":
            sub.usage = "radix-server [start] --name /x --data-bytes SIZE [--config FILE] [...]"
            add_config_flags(sub)
            sub.add_argument("--verbose", action="store_true", help="log debug messages")
        else:
            _add_view_flags(sub, verb)
    return parser


def _hint(unknown: str, verb: str) -> str:
    """What was meant by an argument that `verb` does not know, or an empty text."""
    if unknown.startswith("/"):
        return f"; the name is given by --name {unknown}"
    flags = [text for action in _verb_parsers[verb]._actions for text in action.option_strings]
    return near_names(unknown, [*_VERBS, *flags]) or near_names(f"--{unknown}", flags)


def _add_view_flags(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("position_name", nargs="?", metavar="NAME", help="name of the server")
    parser.add_argument("--name", help="the same as NAME")
    if verb in ("status", "top", "nodes", "drain"):
        parser.add_argument("--endpoint", default="", help="control socket, if not the default")
    if verb == "check":
        parser.add_argument(
            "--repair", action="store_true", help="first rebuild what is derived (takes the lock)"
        )
    if verb == "drain":
        parser.add_argument(
            "--forget-geometry",
            action="store_true",
            help="then delete the cache and wait for another geometry",
        )
    if verb == "dump":
        parser.add_argument("--limit", type=_number, default=100, help="segments to list [100]")
    if verb == "top":
        parser.add_argument("--interval", type=_seconds, default=1.0, help="seconds [1]")
        parser.add_argument(
            "--count", type=_number, default=0, help="stop after so many; 0: never [0]"
        )


def _number(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if not 0 <= value < 1 << 31:
        raise argparse.ArgumentTypeError(f"{value} must be at least 0 and below 2**31")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value <= 86400:  # also refuses NaN
        raise argparse.ArgumentTypeError(f"{value:g} must be above 0, and at most a day")
    return value


def _take_name(parsed: argparse.Namespace) -> bool:
    parsed.name = parsed.name or parsed.position_name
    return bool(parsed.name)


if __name__ == "__main__":
    sys.exit(main())
