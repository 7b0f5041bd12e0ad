# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Where a `ServerConfig` comes from: command line flags over a TOML file over the defaults.

Flags and keys are made from the fields of `ServerConfig`; there is no second list.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import sys
import types
import typing
from pathlib import Path
from typing import Any

from .config import ServerConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["add_config_flags", "config_from_flags", "load_config", "near_names"]


_GROUPS = {
    "server": "server",
    "cluster": "cluster, with --registry",
    "data plane": "data plane of a cluster",
}


def near_names(name: str, known: list[str]) -> str:
    """A hint such as "; did you mean data_bytes?", or an empty text."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def load_config(path: str | Path) -> dict[str, Any]:
    """The keys of a TOML file, checked against the fields of `ServerConfig`."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read the config file {path}: {error.strerror}") from error
    try:
        values = tomllib.loads(content.decode())
    except ValueError as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from error
    known = [field.name for field in dataclasses.fields(ServerConfig)]
    for key in values:
        if key not in known:
            hint = near_names(key.replace("-", "_"), known)
            raise ValueError(f"{path}: unknown key {key!r}{hint}")
    return values


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each field of `ServerConfig`, and --config. Absent flags stay absent.

    The help names those that have no effect in this version in one paragraph.
    """
    parser.add_argument(
        "--config", metavar="FILE", help="TOML file with the same options; flags win over it"
    )
    hints = typing.get_type_hints(ServerConfig)
    groups = {name: parser.add_argument_group(title) for name, title in _GROUPS.items()}
    for field in dataclasses.fields(ServerConfig):
        groups[field.metadata["group"]].add_argument(
            "--" + field.name.replace("_", "-"),
            dest=field.name,
            default=argparse.SUPPRESS,
            help=_help(field),
            **_flag_form(field, hints[field.name]),
        )


def _help(field: dataclasses.Field[Any]) -> str:
    text = str(field.metadata["help"]).replace("%", "%%")
    shown = field.default not in (dataclasses.MISSING, None, "", ()) and "0:" not in text
    return f"{text} [{field.default}]" if shown else text


def _flag_form(field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is tuple:
        return {"action": "append", "metavar": "NAME[,NAME]"}
    if field.metadata.get("size"):
        return {"type": str, "metavar": "SIZE"}
    form: dict[str, Any] = {"type": _scalar(hint), "metavar": "VALUE"}
    choices = field.metadata.get("choices")
    if choices:
        form["metavar"] = "|".join(c for c in choices if c)
    return form


def _scalar(hint: Any) -> type:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    return typing.cast("type", hint)


def config_from_flags(arguments: argparse.Namespace) -> ServerConfig:
    """The config that flags and the file of --config describe. ValueError says what is wrong."""
    values = load_config(arguments.config) if arguments.config else {}
    for field in dataclasses.fields(ServerConfig):
        if hasattr(arguments, field.name):
            values[field.name] = getattr(arguments, field.name)
    if "name" not in values:
        raise ValueError("no name is given; use --name /my_kv_cache, or the key name in the file")
    return ServerConfig(**values)
