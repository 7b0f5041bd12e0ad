# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`make demo-vllm`: a second engine process restores what a killed one had stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[3] / "benchmarks" / "demo_vllm.py"
TIMEOUT_S = 400


def test_the_demo_restores_blocks_of_a_killed_engine(tmp_path: Path) -> None:
    report = tmp_path / "demo.json"
    process = subprocess.Popen(
        [sys.executable, str(DEMO), "--json", str(report)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"},
    )
    try:
        said = process.communicate(timeout=TIMEOUT_S)[0]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said
    cold, restored, other = json.loads(report.read_text())["rounds"]
    assert sum(cold["cached_tokens"]) == 0
    assert restored["cached_tokens"] == other["cached_tokens"] == [640] * 4
    assert cold["tokens"] == restored["tokens"] == other["tokens"]
    assert len({tuple(tokens) for tokens in cold["tokens"]}) == 4, "the prompts are told apart"
    assert "engine 2, restored" in said
    assert [f for f in os.listdir("/dev/shm") if f"demo_vllm_{process.pid}" in f] == []
