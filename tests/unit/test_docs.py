# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""docs/api.md names everything that the code has, and its error table is the code's."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import radixshmem
from radixshmem_core import _core
from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.messages import Info
from radixshmem_core.pull import PullJob, PullResult
from radixshmem_core.server import RadixServer
from radixshmem_core.store import SlotStore, SlotStoreConfig
from radixshmem_core.values import Geometry

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def error_table() -> str:
    rows = [
        f"| `{name}` | {value} | {exception or '-'} | {meaning} |"
        for name, value, exception, meaning in _core.error_table()
    ]
    return "\n".join(["| code | value | raised as | meaning |", "|---|---|---|---|", *rows])


def test_error_table_is_the_codes_own() -> None:
    begin, end = "tests/unit/test_docs.py -->\n", "<!-- end of error table -->"
    assert API.count(begin) == API.count(end) == 1
    assert API.split(begin)[1].split(end)[0].strip() == error_table()


def public_members(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


@pytest.mark.parametrize(
    "kind", [RadixClient, RadixServer, PullJob, PullResult, SlotStore, Geometry], ids=repr
)
def test_every_public_member_is_documented(kind: type) -> None:
    hidden = {"difference", "resolve", "mask", "slot_bytes"} if kind is Geometry else set()
    missing = [
        name
        for name in public_members(kind)
        if name not in hidden and not re.search(rf"\b{name}\b", API)
    ]
    assert missing == []


@pytest.mark.parametrize("kind", [ServerConfig, SlotStoreConfig], ids=repr)
def test_every_option_is_documented_with_its_default(kind: type) -> None:
    for field in dataclasses.fields(kind):
        if not field.name.startswith("_"):
            assert re.search(rf"\b{field.name}\b", API), field.name


def test_every_exported_name_is_documented() -> None:
    for name in radixshmem.__all__:
        assert re.search(rf"\b{name}\b", API), name
    for name in Info.__struct_fields__:
        assert f"`{name}`" in API, name


@pytest.mark.parametrize("kind", [_core.QueryResult, _core.InsertResult], ids=repr)
def test_every_result_field_is_documented(kind: type) -> None:
    for name in public_members(kind):
        assert re.search(rf"`{name}(\(\))?`", API), name
