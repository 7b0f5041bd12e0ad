# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Checks of the options that an engine passes to its adapter, from a dict in its own configuration.

`where` is what the engine calls that dict. All raise ValueError, which names the option and what
would work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from .config import check_name
from .options import near_names

__all__ = ["check_milliseconds", "check_text", "given_options", "refuse"]


def given_options(
    settings: Any,
    where: str,
    extra: Mapping[str, Any],
    engines: Collection[str],
    private: tuple[str, ...] = (),
) -> dict[str, Any]:
    """What `extra` has for the fields of the dataclass `settings`, of which `server_name` must be
    there. The engine itself reads `engines`, and what begins with one of `private`."""
    known = [field.name for field in dataclasses.fields(settings)]
    for key in extra:
        if key not in known and key not in engines and not key.startswith(private):
            near = near_names(key, known) or near_names(key, list(engines))
            raise ValueError(
                f"{where}: unknown option {key!r}{near} (radixshmem knows {', '.join(known)})"
            )
    if not extra.get("server_name"):
        raise ValueError(
            f"{where} lacks 'server_name': the --name of the radix-server on this node, "
            'such as {"server_name": "/kv_cache"}'
        )
    check_name(f"{where}: server_name", extra["server_name"])
    return {key: extra[key] for key in known if extra.get(key) is not None}


def check_text(where: str, name: str, value: object) -> None:
    if not isinstance(value, str | None):
        refuse(where, name, value, "a text")


def check_milliseconds(where: str, name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        refuse(where, name, value, "a whole number of milliseconds, unquoted")


def refuse(where: str, name: str, value: object, wanted: str) -> NoReturn:
    raise ValueError(f"{where}: {name} is {value!r}; it must be {wanted}")
