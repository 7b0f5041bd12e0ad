# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The documents of clusters name what the code has: messages, versions, options."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import typing
from pathlib import Path
from typing import Any

import pytest

from radixshmem_core import messages
from radixshmem_core.cli import _VERBS, _parser
from radixshmem_core.cluster import auth, wire
from radixshmem_core.config import ServerConfig

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROTOCOL = (DOCS / "protocol.md").read_text(encoding="utf-8")
GUIDES = [
    DOCS / f"{name}.md"
    for name in ("cluster", "data_planes", "deploy", "lookup", "operations", "registry")
]


def section(heading: str) -> str:
    """What stands under a heading of protocol.md, to the next one of its level."""
    [found] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PROTOCOL, re.M | re.S)
    return str(found)


def messages_of(*unions: Any) -> list[Any]:
    return [kind for union in unions for kind in typing.get_args(union)]


@pytest.mark.parametrize(
    ("heading", "kinds"),
    [
        ("The peer protocol", messages_of(wire.PeerRequest, wire.PeerReply)),
        ("The control protocol", messages_of(messages.Request, messages.Reply)),
    ],
)
def test_every_message_and_field_is_documented(heading: str, kinds: list[Any]) -> None:
    assert len(kinds) > 10
    text = section(heading)
    for kind in kinds:
        for name in (kind.__struct_config__.tag, *kind.__struct_fields__):
            assert f"`{name}`" in text, f"{name} of {kind.__name__}"


def test_every_field_of_a_description_is_documented() -> None:
    for name in wire.Description.__struct_fields__:
        assert f"`{name}`" in section("The peer protocol"), name


def test_the_fields_of_a_peers_layout_are_documented() -> None:
    source = (ROOT / "csrc" / "bindings" / "cluster.cc").read_text(encoding="utf-8")
    listed = re.search(r"#define RADIX_PEER_FIELDS\(X\)(.*?)\n\n", source, re.S)
    assert listed
    fields = re.findall(r"X\((\w+)\)", listed[1])
    assert len(fields) > 10
    assert [name for name in fields if f"`{name}`" not in section("The peer protocol")] == []


def test_protocol_versions_are_those_of_the_code() -> None:
    versions = dict(re.findall(r"^\| \[([a-z ]+)\]\S+ .*?\| (\d+) \|", PROTOCOL, re.M))
    assert versions["handshake"] == str(auth.HANDSHAKE_VERSION)
    assert versions["peer protocol"] == str(wire.PEER_PROTOCOL)
    assert versions["control protocol"] == str(messages.PROTOCOL_VERSION)
    assert versions["publication batches"] == constant(
        "directory/directory_wire.h", "kBatchVersion"
    )
    assert versions["queue pairs"] == constant("transport/verbs_info.h", "kVerbsVersion")


def constant(header: str, name: str) -> str:
    [value] = re.findall(rf" {name} = (\d+);", (ROOT / "csrc" / header).read_text(encoding="utf-8"))
    return str(value)


# ---------------------------------------------------------------- options and commands


def test_every_option_of_clusters_is_explained_beside_its_use() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in GUIDES)
    cluster = [f.name for f in dataclasses.fields(ServerConfig) if f.metadata["group"] != "server"]
    assert len(cluster) > 20
    for name in cluster:
        assert f"`{name}`" in text or f"`--{name.replace('_', '-')}" in text, name


def commands(path: Path) -> list[list[str]]:
    """The arguments of every radix-server that a document shows."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    found = [shlex.split(line) for line in re.findall(r"radix-server ((?:--|\w+ /)[^\n`]*)", text)]
    manifests = "\n".join(re.findall(r"```yaml\n(.*?)```", text, re.S))
    for words in re.findall(r"(?:command|args): (\[.*?\])", manifests, re.S):
        arguments = json.loads(words)
        found.append(arguments[1:] if arguments[0] == "radix-server" else arguments)
    return [arguments for arguments in found if arguments]


@pytest.mark.parametrize("name", ["cluster", "deploy", "operations"])
def test_commands_in_the_guides_can_be_given(name: str) -> None:
    shown = commands(DOCS / f"{name}.md")
    assert shown
    for arguments in shown:
        starts = arguments[0].startswith("--")
        parsed = _parser().parse_args(["start", *arguments] if starts else arguments)
        assert parsed.verb == "start" or parsed.position_name.startswith("/"), arguments


def test_every_verb_is_documented() -> None:
    api = (DOCS / "api.md").read_text(encoding="utf-8")
    assert [verb for verb in _VERBS if verb != "start" and f"| `{verb} NAME" not in api] == []
