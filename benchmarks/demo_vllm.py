# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A real vLLM engine restores KV blocks from radixshmem, also those of an engine that was killed.

    make demo-vllm                     # makes an environment with vLLM for the CPU, and runs this

On a tiny random model: what is shown is that blocks come back and tokens are the same, not how
fast. Exit status: 0 when all went well, 1 when a token differed, a block did not come back, or a
process failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import print_table
from server_process import interrupt_held, own_name, radix_server
from vllm_engine import BLOCK_TOKENS

_PROMPTS = 4
_BLOCKS = 20  # whole ones, of each prompt


@dataclass(frozen=True, slots=True)
class Round:
    """The prompts, once."""

    what: str
    tokens: list[list[int]]
    """What followed each prompt."""
    cached_tokens: list[int]
    """Of each prompt, how many tokens had not to be computed."""
    seconds: float
    expected_cached: int


class EngineProcess:
    """A process that imports vLLM and makes an engine when it is told to."""

    def __init__(self, number: int, folder: Path, server: str, timeout_s: float) -> None:
        self._name = f"engine {number}"
        self._timeout_s = timeout_s
        self._log = folder / f"engine{number}.log"
        self._pipe, theirs = multiprocessing.Pipe()
        command = [sys.executable, str(Path(__file__).with_name("vllm_engine.py"))]
        command += [str(theirs.fileno()), str(folder / "model"), server]
        with interrupt_held(), self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, pass_fds=[theirs.fileno()]
            )
        theirs.close()

    def ask(self, *command: Any) -> Any:
        """Have it done, and wait."""
        with contextlib.suppress(BrokenPipeError):  # then the answer tells it
            self._pipe.send(command)
        return self.answer()

    def answer(self) -> Any:
        if not self._pipe.poll(self._timeout_s):
            raise TimeoutError(f"{self._name} did not answer within {self._timeout_s} s")
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            status = self._process.wait()
            words = self._log.read_text(errors="replace").strip()[-3000:]
            raise RuntimeError(
                f"{self._name} ended with status {status}; it said:\n{words}"
            ) from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def generate(self, what: str, prompts: list[list[int]], expected_cached: int) -> Round:
        return Round(what, *self.ask("generate", prompts), expected_cached)


def say(words: str) -> None:
    print(f"demo-vllm: {words}", flush=True)


@contextlib.contextmanager
def two_engines(folder: Path, server: str, timeout_s: float) -> Iterator[list[EngineProcess]]:
    engines: list[EngineProcess] = []
    try:
        engines.extend(EngineProcess(n, folder, server, timeout_s) for n in (1, 2))
        yield engines
    finally:
        for engine in engines:
            engine.kill()


def run_demo(timeout_s: float) -> list[Round]:
    """Raises RuntimeError when a process fails, TimeoutError when one does not answer."""
    dice = random.Random(0)
    tokens = _BLOCKS * BLOCK_TOKENS + 4
    prompts = [[dice.randrange(3, 500) for _ in range(tokens)] for _ in range(_PROMPTS)]
    name = own_name("demo_vllm")
    rounds = []
    with (
        tempfile.TemporaryDirectory() as folder,
        radix_server(name, "--data-bytes", "64M"),
        two_engines(Path(folder), name, timeout_s) as (first, second),
    ):
        say("two processes import vLLM; the first time that takes a minute")
        first.answer()
        second.answer()
        say(f"engine 1 (process {first.pid}) starts")
        first.ask("start")
        say(f"it computes {_PROMPTS} prompts of {tokens} tokens, and stores their blocks")
        rounds.append(first.generate("engine 1, cold", prompts, 0))
        say("its own prefix cache is emptied, and the prompts come again")
        if not first.ask("forget"):
            raise RuntimeError("vLLM did not empty its prefix cache")
        cached = _PROMPTS * _BLOCKS * BLOCK_TOKENS
        rounds.append(first.generate("engine 1, restored", prompts, cached))
        say("engine 1 is killed (SIGKILL)")
        first.kill()
        say(f"engine 2 (process {second.pid}) starts, and gets the same prompts")
        second.ask("start")
        rounds.append(second.generate("engine 2, restored", prompts, cached))
    return rounds


def verdict(rounds: list[Round]) -> list[str]:
    """What went wrong."""
    problems = []
    for each in rounds:
        cached = sum(each.cached_tokens)
        if cached != each.expected_cached:
            problems.append(f"{each.what}: {cached} cached tokens, not {each.expected_cached}")
        if each.tokens != rounds[0].tokens:
            problems.append(f"{each.what}: other tokens than those that were computed cold")
    return problems


def show(rounds: list[Round]) -> None:
    cold = rounds[0]
    rows = [
        (
            each.what,
            f"{sum(each.cached_tokens):,}",
            f"{each.seconds:.2f}",
            "yes" if each.tokens == cold.tokens else "NO",
        )
        for each in rounds
    ]
    total = _PROMPTS * (_BLOCKS * BLOCK_TOKENS + 4)
    columns = ("", f"cached of {total:,} tokens", "seconds", "same output")
    print_table("KV blocks of a vLLM engine in radixshmem", columns, rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Restore a real vLLM engine's blocks.")
    parser.add_argument("--json", default="", metavar="FILE", help="write the numbers here too")
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="of each step (default 300)"
    )
    arguments = parser.parse_args(argv)
    try:
        rounds = run_demo(arguments.timeout)
    except (RuntimeError, TimeoutError) as error:
        print(f"demo-vllm: FAILED: {error}", file=sys.stderr)
        return 1
    show(rounds)
    problems = verdict(rounds)
    if arguments.json:
        report = {
            "rounds": [
                {
                    "what": each.what,
                    "cached_tokens": each.cached_tokens,
                    "seconds": each.seconds,
                    "tokens": each.tokens,
                }
                for each in rounds
            ],
            "problems": problems,
        }
        Path(arguments.json).write_text(json.dumps(report) + "\n", encoding="utf-8")
    for problem in problems:
        print(f"demo-vllm: FAILED: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("demo-vllm: interrupted; its server and engines are gone", file=sys.stderr)
        sys.exit(130)
