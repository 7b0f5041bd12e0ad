# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Rows of the vLLM adapter, measured by a process of an environment that has vLLM."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from rows import Row, skipped

__all__ = ["vllm_rows"]

_PROCESS = Path(__file__).with_name("vllm_process.py")
_TIMEOUT_S = 600
_LAST_WORDS = 2000  # characters


def vllm_rows(python: str, rounds: int) -> list[Row]:
    """`python`: of that environment; empty: there is none.

    RuntimeError, with its last words, when the process fails.
    """
    if not python:
        return [skipped("vLLM adapter", "needs an environment with vLLM, see --vllm-python")]
    done = subprocess.run(
        [python, str(_PROCESS), str(rounds)], capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{python} {_PROCESS} ended with status {done.returncode}; it said:\n"
            f"{done.stderr[-_LAST_WORDS:]}"
        )
    return [Row(**row) for row in json.loads(done.stdout)]
