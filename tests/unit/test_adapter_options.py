# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the adapters of all engines say of a wrong option."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from radixshmem_core.adapter_options import check_milliseconds, check_text, given_options, refuse


@dataclass
class Settings:
    server_name: str
    endpoint: str | None = None
    wait_ms: int = 5


def given(extra: dict[str, Any]) -> dict[str, Any]:
    return given_options(Settings, "extra", extra, ("engines",), ("_",))


def test_what_is_given_is_taken_and_what_the_engine_reads_is_left_out() -> None:
    extra = {"wait_ms": 0, "engines": 1, "_own": 2, "endpoint": None, "server_name": "/kv"}
    assert given(extra) == {"server_name": "/kv", "wait_ms": 0}


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"server_name": "/kv", "wait_m": 1}, "unknown option 'wait_m'; did you mean wait_ms?"),
        ({"server_name": "/kv", "engine": 1}, "unknown option 'engine'; did you mean engines?"),
        ({"server_name": "/kv", "x": 1}, "'x' (radixshmem knows server_name, endpoint, wait_ms)"),
        ({}, "lacks 'server_name': the --name of the radix-server"),
        ({"server_name": None}, "lacks 'server_name'"),
        ({"server_name": "kv"}, "server_name is 'kv'; it must start with \"/\""),
    ],
)
def test_what_is_unknown_or_missing_is_told(extra: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^extra.*{re.escape(told)}"):
        given(extra)


def test_values_of_the_wrong_kind_are_told() -> None:
    check_text("extra", "endpoint", None)
    check_text("extra", "endpoint", "unix:///run/kv.sock")
    check_milliseconds("extra", "wait_ms", 0)
    with pytest.raises(ValueError, match="extra: endpoint is 7; it must be a text"):
        check_text("extra", "endpoint", 7)
    for wrong in ("5", 0.5, -1, True, None):
        told = re.escape(f"extra: wait_ms is {wrong!r}; it must be a whole number of milliseconds")
        with pytest.raises(ValueError, match=told):
            check_milliseconds("extra", "wait_ms", wrong)
    with pytest.raises(ValueError, match="extra: wait_ms is 3; it must be less"):
        refuse("extra", "wait_ms", 3, "less")
