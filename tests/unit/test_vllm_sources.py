# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""scripts/vllm_sources.py beside a package index that is not there, or not as it should be."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "vllm_sources.py"
VERSION = "0.33.0"
SDIST = f"vllm-{VERSION}.tar.gz"
SOURCE = f"vllm-{VERSION}/vllm/v1/request.py"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """The folder of vllm's page in an index, and the address of the index."""
    folder = tmp_path / "simple" / "vllm"
    folder.mkdir(parents=True)
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()
        thread.join()


def fetch(address: str, target: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), VERSION, str(target)],
        capture_output=True,
        text=True,
        env={**os.environ, "PIP_INDEX_URL": address, "no_proxy": "127.0.0.1"},
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def list_sdist(folder: Path, hashes: dict[str, str]) -> None:
    page = {"files": [{"filename": SDIST, "url": SDIST, "hashes": hashes}]}
    (folder / "index.html").write_text(json.dumps(page))


def test_sources_are_fetched_and_unpacked(index: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = index
    with tarfile.open(folder / SDIST, "w:gz") as archive:
        member = tarfile.TarInfo(SOURCE)
        member.size = 4
        archive.addfile(member, io.BytesIO(b"pass"))
    digest = hashlib.sha256((folder / SDIST).read_bytes()).hexdigest()
    list_sdist(folder, {"sha256": digest})
    assert fetch(address, tmp_path / "to") == (0, "")
    assert (tmp_path / "to" / "vllm" / "v1" / "request.py").read_text() == "pass"
    list_sdist(folder, {"sha256": "0" * 64})
    status, said = fetch(address, tmp_path / "other")
    assert status == 1
    assert f"sha256 is {digest}, the index says 000" in said
    assert not (tmp_path / "other" / "vllm").exists()


@pytest.mark.parametrize("page", ["<html>", "[]", "{}", '{"files": 3}'])
def test_an_index_of_another_kind_is_told(
    index: tuple[Path, str], tmp_path: Path, page: str
) -> None:
    folder, address = index
    (folder / "index.html").write_text(page)
    _assert_told(fetch(address, tmp_path / "to"), f"{address}/vllm/ does not list the files")


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/simple", "no address"])
def test_an_index_that_is_not_there_is_told(address: str, tmp_path: Path) -> None:
    _assert_told(fetch(address, tmp_path / "to"), f"{address}/vllm/ does not list the files")


def test_a_file_that_is_not_there_is_told(index: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = index
    list_sdist(folder, {"sha256": "0" * 64})
    _assert_told(fetch(address, tmp_path / "to"), f"{SDIST} cannot be fetched: HTTP Error 404")
    list_sdist(folder, {})
    _assert_told(fetch(address, tmp_path / "to"), "the index has no sha256 of")


def _assert_told(outcome: tuple[int, str], what: str) -> None:
    status, said = outcome
    assert status == 1
    assert what in said
    assert "Traceback" not in said
