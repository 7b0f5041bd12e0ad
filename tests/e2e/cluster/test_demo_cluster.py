# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The cluster demo is a test: what it prints was seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[3] / "benchmarks" / "demo_cluster.py"
TIMEOUT_S = 200


def run(tmp_path: Path, *flags: str) -> dict[str, object]:
    numbers = tmp_path / "numbers.json"
    command = [sys.executable, str(DEMO), "--json", str(numbers), "--backend", "builtin", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended with" not in done.stdout, done.stdout  # a server that did not stop cleanly
    figures = json.loads(numbers.read_text())
    assert figures["wrong_bytes"] == 0
    assert figures["remote_blocks"] > 500
    assert [name for name in os.listdir("/dev/shm") if "radix_cluster" in name] == []
    return dict(figures)


def test_four_nodes_of_their_own_share_blocks_and_one_is_killed(tmp_path: Path) -> None:
    figures = run(tmp_path, "--requests", "1000")
    if os.geteuid() == 0:
        assert figures["transports"] == ["shm", "tcp"]  # shm: a node's own memory


@pytest.mark.slow
def test_four_nodes_on_loopback_read_each_others_memory(tmp_path: Path) -> None:
    figures = run(tmp_path, "--requests", "1000", "--loopback")
    assert figures["transports"] == ["shm"]
