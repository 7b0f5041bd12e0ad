#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Fetches the sources of a vLLM version that the contract tests read; nothing of it is built.

Usage: scripts/vllm_sources.py VERSION FOLDER

Takes the sdist from pip's package index, compares its hash with the index's, and unpacks the
Python files of some packages into FOLDER. pip cannot do this: for an sdist it runs the build's
metadata step, which needs a compiler and PyTorch.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

_ACCEPT = {"Accept": "application/vnd.pypi.simple.v1+json"}
_PARTS = ("vllm/distributed/", "vllm/v1/", "vllm/config/")
_TIMEOUT_S = 60


def main(version: str, folder: Path) -> None:
    done = folder / f"{version}.sha256"
    found = sdist(version)
    expected = found.get("hashes", {}).get("sha256")
    if expected is None:
        sys.exit(f"the index has no sha256 of {found['url']}: use another index")
    if done.exists() and done.read_text() == expected:
        return
    with tempfile.TemporaryFile() as archive:
        digest = hashlib.sha256()
        try:
            with urllib.request.urlopen(found["url"], timeout=_TIMEOUT_S) as response:
                while piece := response.read(1 << 20):
                    digest.update(piece)
                    archive.write(piece)
        except (OSError, http.client.HTTPException) as error:
            sys.exit(f"{found['url']} cannot be fetched: {error}; try again")
        if digest.hexdigest() != expected:
            sys.exit(f"{found['url']}: sha256 is {digest.hexdigest()}, the index says {expected}")
        archive.seek(0)
        with tarfile.open(fileobj=archive, mode="r:gz") as files:
            unpack(files, folder)
    done.write_text(expected)


def sdist(version: str) -> dict[str, Any]:
    index = index_url()
    page = f"{index}/vllm/"
    try:
        request = urllib.request.Request(page, headers=_ACCEPT)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            files = {file["filename"]: file for file in json.load(response)["files"]}
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
        sys.exit(
            f"{page} does not list the files of vllm as JSON ({error}); have PIP_INDEX_URL or "
            "pip's global.index-url name an index that does, such as https://pypi.org/simple"
        )
    file = files.get(f"vllm-{version}.tar.gz")
    if file is None:
        sys.exit(f"{index} has no sdist of vllm {version}")
    return {**file, "url": urljoin(page, file["url"])}


def index_url() -> str:
    configured = os.environ.get("PIP_INDEX_URL")
    if configured is None:
        command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        configured = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return (configured or "https://pypi.org/simple").rstrip("/")


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    for member in archive:
        name = member.name.partition("/")[2]  # without vllm-VERSION/
        if not (member.isfile() and name.startswith(_PARTS) and name.endswith(".py")):
            continue
        if ".." in Path(name).parts:
            sys.exit(f"the archive has a file outside of it: {member.name}")
        content = archive.extractfile(member)
        assert content is not None
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.read())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]))
