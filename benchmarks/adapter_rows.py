# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Rows of the engines' adapters, each measured by a process of an environment with that engine."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from rows import Row, skipped
from sglang_server import cpu_environment

__all__ = ["answer_rows", "sglang_rows", "vllm_rows"]

_TIMEOUT_S = 600
_LAST_WORDS = 2000  # characters


def vllm_rows(python: str, rounds: int) -> list[Row]:
    """`python`: of that environment; empty: there is none.

    RuntimeError, with its last words, when the process fails.
    """
    return _rows("vLLM", python, rounds, os.environ)


def sglang_rows(python: str, rounds: int) -> list[Row]:
    """The same with SGLang."""
    return _rows("SGLang", python, rounds, cpu_environment())


def _rows(engine: str, python: str, rounds: int, environment: Mapping[str, str]) -> list[Row]:
    word = engine.lower()
    if not python:
        reason = f"needs an environment with {engine}, see --{word}-python"
        return [skipped(f"{engine} adapter", reason)]
    script = str(Path(__file__).with_name(f"{word}_process.py"))
    done = subprocess.run(
        [python, script, str(rounds)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        env=environment,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{python} {script} ended with status {done.returncode}; it said:\n"
            f"{done.stderr[-_LAST_WORDS:]}"
        )
    return [Row(**row) for row in json.loads(done.stdout)]


def answer_rows(load: Callable[[], Callable[[int], list[Row]]]) -> None:
    """The other side: `load` imports the engine; what it returns measures in so many rounds."""
    rounds = int(sys.argv[1])
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the engine prints is no part of the answer
    measure = load()
    gc.collect()
    gc.freeze()  # as engines do: what was imported is not searched for garbage again
    rows = measure(rounds)
    with answer:
        json.dump([asdict(row) for row in rows], answer)
