# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The documents say what the code does: names, error table, bytes, and code that runs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import ServerProcess

import radixshmem
from radixshmem_core import _core
from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.messages import Info
from radixshmem_core.pull import PullJob, PullResult
from radixshmem_core.server import RadixServer
from radixshmem_core.store import SlotStore, SlotStoreConfig
from radixshmem_core.values import Geometry

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
INTEGRATIONS = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
LAYOUT = (ROOT / "docs" / "shared_memory_layout.md").read_text(encoding="utf-8")
DEADLINE_S = 120


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


@pytest.mark.parametrize("kind", [_core.QueryResult, _core.AuxResult, _core.InsertResult], ids=repr)
def test_every_result_field_is_documented(kind: type) -> None:
    for name in public_members(kind):
        assert re.search(rf"`{name}(\(\))?`", API), name


# ---------------------------------------------------------------- integrations.md


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.json")), ids=lambda p: p.name)
def test_configurations_of_engines_are_in_the_document(file: Path) -> None:
    configuration = json.loads(file.read_text(encoding="utf-8"))
    shown = [json.loads(code) for code in re.findall(r"```json\n(.*?)```", INTEGRATIONS, re.S)]
    assert configuration in shown


@pytest.mark.parametrize("adapter", ["vllm_offload", "sglang_hicache"])
def test_every_option_of_an_adapter_is_documented_with_its_default(adapter: str) -> None:
    file = ROOT / "integrations" / adapter / "options.py"
    options = runpy.run_path(str(file), run_name="options")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in INTEGRATIONS.splitlines()
        if line.startswith("| `")
    ]
    for field in dataclasses.fields(options["Settings"]):
        default = {dataclasses.MISSING: "required", None: "", False: "false"}.get(
            field.default, str(field.default)
        )
        assert [f"`{field.name}`", default] in [row[:2] for row in rows], field.name
        assert f"| `{field.name}` | {default}".strip() in options["__doc__"], field.name


# ---------------------------------------------------------------- shared_memory_layout.md


def rows_after(marker: str) -> list[list[str]]:
    """Cells of the table that follows `marker`, without its head."""
    table = LAYOUT.split(marker)[1].split("\n\n")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def documented_structs() -> Iterator[tuple[str, int, list[list[str]]]]:
    for name, size in re.findall(r"<!-- layout: (\S+) (\d+) -->", LAYOUT):
        yield name, int(size), rows_after(f"<!-- layout: {name} {size} -->")


WORD_FIELDS = {
    ("segment head", "version"): "SegmentHead{1, SegmentState::kFree, 0, 0}.pack()",
    ("segment head", "state"): "SegmentHead{0, SegmentState::kLive, 0, 0}.pack()",
    ("segment head", "count"): "SegmentHead{0, SegmentState::kFree, 1, 0}.pack()",
    ("segment head", "owned"): "SegmentHead{0, SegmentState::kFree, 0, 1}.pack()",
    ("aux word", "version"): "AuxWord::absent_after(0)",
    ("aux word", "leaving"): "AuxWord::leaving(0)",
    ("aux word", "slot + 1"): "AuxWord::with_slot(0, 0)",
    ("pin", "segment"): "PinWord{1, 0, 0}.pack()",
    ("pin", "depth"): "PinWord{0, 1, 0}.pack()",
    ("pin", "mask"): "PinWord{0, 0, 1}.pack()",
    ("directory word 0", "tag"): "DirectoryEntry{1, 0, 0, 0, {}, {}}.word0()",
    ("directory word 0", "aux"): "DirectoryEntry{0, 1, 0, 0, {}, {}}.word0()",
    ("directory word 0", "rank"): "DirectoryEntry{0, 0, 1, 0, {}, {}}.word0()",
    ("directory word 0", "incarnation"): "DirectoryEntry{0, 0, 0, 1, {}, {}}.word0()",
    ("directory word 1", "segment"): "DirectoryEntry{0, 0, 0, 0, {1, 0}, {}}.word1()",
    ("directory word 1", "segment class"): "DirectoryEntry{0, 0, 0, 0, {0, 1}, {}}.word1()",
    ("directory word 1", "parent"): "DirectoryEntry{0, 0, 0, 0, {}, {1, 0}}.word1()",
    ("directory word 1", "parent class"): "DirectoryEntry{0, 0, 0, 0, {}, {0, 1}}.word1()",
}


def test_offsets_sizes_and_bits_are_those_of_the_headers() -> None:
    compiler = shlex.split(
        os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or ""
    )
    assert compiler, "checking the documented layout needs a C++ compiler"
    claims: list[str] = []
    for struct, size, rows in documented_structs():
        claims.append(f"sizeof({struct}) == {size}")
        for byte, bytes_, field, _ in rows:
            member = field.strip("`")
            claims.append(f"offsetof({struct}, {member}) == {byte}")
            claims.append(f"sizeof({struct}::{member}) == {bytes_}")
    words = {(word, field): bits for word, bits, field, _ in rows_after("<!-- packed words -->")}
    for key, value in WORD_FIELDS.items():
        claims.append(f"{value} == std::uint64_t{{1}} << {words[key].split('.')[-1]}")
    assert len(claims) > 150
    source = [
        '#include "directory/peer_table.h"',
        '#include "tree/control.h"',
        '#include "tree/hash_table.h"',
        '#include "tree/side_pool.h"',
        '#include "layout/region_header.h"',
        "namespace radixshmem {",
        *(f"static_assert({claim});" for claim in claims),
        "}",
    ]
    command = [*compiler, "-std=c++20", "-Wno-invalid-offsetof", "-fsyntax-only", "-x", "c++"]
    done = subprocess.run(
        [*command, "-I", str(ROOT / "csrc"), "-"],
        input="\n".join(source),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr


def test_every_field_and_area_has_its_row() -> None:
    headers = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "csrc").rglob("*.h"))
    documented = {row[2].strip("`") for _, _, rows in documented_structs() for row in rows}
    for struct, _, _ in documented_structs():
        body = re.search(
            rf"struct (?:alignas\(\w+\) )?{struct.split('::')[-1]} {{\n(.*?)\n *}};", headers, re.S
        )
        assert body, struct
        fields = re.findall(r"^ .*?[>\w] (\w+)(?:\[\w+\])?;", body[1], re.M)
        assert fields, struct
        assert set(fields) <= documented, struct
    kinds = re.search(r"enum class AreaKind.*?{(.*?)};", headers, re.S)
    assert kinds
    for kind in re.findall(r"^ +(k\w+)", kinds[1], re.M):
        assert f"`{kind}`" in LAYOUT, kind


def test_size_classes_follow_from_the_sizes_of_an_entry() -> None:
    rows = [
        [re.findall(r"\d+", cell) for cell in row] for row in rows_after("<!-- size classes -->")
    ]
    assert len(rows) == 5
    for _, _, [entries], [size], [in_page] in rows:
        exact = 64 if entries == "1" else 48 + int(entries) * (8 + 4 + 2)
        assert int(size) == -(-exact // 64) * 64
        assert int(in_page) == 65536 // int(size)


# ---------------------------------------------------------------- recovery.md


def test_every_invariant_of_check_has_its_row() -> None:
    recovery = (ROOT / "docs" / "recovery.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (I\d+) \|", recovery.split("## Invariants")[1], re.M)
    header = (ROOT / "csrc" / "tree" / "tree.h").read_text(encoding="utf-8").split("#pragma")[0]
    assert listed == [f"I{number}" for number in range(1, len(listed) + 1)]
    assert set(listed) == set(re.findall(r"\bI\d+\b", header))
    printed = re.findall(r'"(I\d+) ', (ROOT / "csrc/tree/check.cc").read_text(encoding="utf-8"))
    assert printed
    assert set(printed) <= set(listed)


# ---------------------------------------------------------------- code in documents


def blocks(language: str) -> list[tuple[str, str, str]]:
    """(document, code, the text block that follows it at once or after one line)."""
    found = []
    for path in DOCUMENTS:
        pattern = rf"```{language}\n(.*?)```(?:\n+[^\n`]*)?(?:\n+```text\n(.*?)```)?"
        for code, printed in re.findall(pattern, path.read_text(encoding="utf-8"), re.S):
            found.append((path.name, code, printed))
    return found


def run_python(code: str, name: str) -> str:
    for used in ("/my_kv_cache", "/kv_cache"):
        code = code.replace(f'"{used}"', f'"{name}"')
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("document", "code", "printed"),
    [block for block in blocks("python") if block[0] != "README.md"],
    ids=lambda value: value if value.endswith(".md") else "",
)
def test_python_in_documents_runs(document: str, code: str, printed: str, region_name: str) -> None:
    output = run_python(code, region_name)
    assert not printed or output == printed


def test_readme_server_and_client_work(region_name: str, readme_commands: list[list[str]]) -> None:
    [(_, code, printed)] = [block for block in blocks("python") if block[0] == "README.md"]
    [command] = [words for words in readme_commands if words[0] == "radix-server"]
    assert command[1:3] == ["--name", "/my_kv_cache"]
    server = ServerProcess(region_name, *command[3:])
    try:
        server.event("waiting")
        assert printed
        assert run_python(code, region_name) == printed
        assert server.stop() == 0, server.errors
    finally:
        server.kill()


@pytest.fixture
def readme_commands() -> list[list[str]]:
    shell = [code for document, code, _ in blocks("bash") if document == "README.md"]
    return [shlex.split(line) for code in shell for line in code.splitlines()]


def test_readme_commands_exist(readme_commands: list[list[str]]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for program, *arguments in readme_commands:
        if program == "make":
            assert arguments[0] in targets
        else:
            assert program == "radix-server" or [program, *arguments] == ["pip", "install", "."]
    programs = {program for program, *_ in readme_commands}
    assert programs == {"make", "pip", "radix-server"}


def test_links_between_documents_lead_somewhere() -> None:
    for path in [*DOCUMENTS, ROOT / "csrc" / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = path.read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", text, re.M)
        }
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith("#"):
                assert target[1:] in headings, f"{path.name}: {target}"
            elif "://" not in target:
                assert (path.parent / target.split("#")[0]).exists(), f"{path.name}: {target}"


# ---------------------------------------------------------------- scripts/readme_figures.py

REPORT: dict[str, Any] = {
    "machine": "a machine",
    "rows": [
        {
            "figure": "a figure",
            "measured": "ours: 2.0 us",
            "reference": "theirs: 1.0 us",
            "value": 2.0,
            "bound": 4.0,
            "at_least": False,
            "unit": "x",
            "note": "",
            "reached": True,
        },
    ],
}


def figures(report: dict[str, Any], readme: Path) -> subprocess.CompletedProcess[str]:
    file = readme.with_suffix(".json")
    file.write_text(json.dumps(report), encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts/readme_figures.py"), str(file), "--readme", readme],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def test_readme_figures_come_from_the_report_and_can_be_replaced(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    original = (ROOT / "README.md").read_text(encoding="utf-8")
    readme.write_text(original, encoding="utf-8")
    done = figures(REPORT, readme)
    assert done.returncode == 0, done.stderr
    filled = readme.read_text(encoding="utf-8")
    row = (
        "| a figure | ours: 2.0 us | theirs: 1.0 us | 2 x | at most 4 x |\n\nMachine: a machine.\n"
    )
    assert row in filled
    assert filled.split("<!-- figures")[0] == original.split("<!-- figures")[0]
    assert filled.split("figures: end -->")[1] == original.split("figures: end -->")[1]
    missed = {**REPORT["rows"][0], "value": 5.0, "reached": False}
    skipped = {**REPORT["rows"][0], "value": None, "note": "skipped: no peer"}
    assert figures({**REPORT, "rows": [missed, skipped]}, readme).returncode == 0
    filled = readme.read_text(encoding="utf-8")
    assert "| 5 x | at most 4 x **missed** |" in filled
    assert "| a figure | skipped: no peer |  |  |  |" in filled
    assert row not in filled


def test_readme_figures_refuse_a_readme_without_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("nothing", encoding="utf-8")
    done = figures(REPORT, readme)
    assert done.returncode == 2
    assert "figures: begin" in done.stderr
    assert readme.read_text(encoding="utf-8") == "nothing"
