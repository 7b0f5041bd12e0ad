# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A real SGLang server restores KV pages from radixshmem, also those of another server.

    make demo-sglang                   # makes an environment with SGLang for the CPU, and runs this

On a tiny random model: what is shown is that pages come back and tokens are the same, not how fast.
Exit status: 0 when all went well, 1 when a token or a log probability differed, a page did not come
back, or a process failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from report import print_table
from server_process import own_name, radix_server
from sglang_client import Answer, SGLangClient
from sglang_server import PAGE_TOKENS, SGLangServer, dynamic_flags, native_flags
from tiny_llama import make_model

import radixshmem

PAGES = 40  # whole ones, of each prompt
_dice = random.Random(0)
PROMPTS = [[_dice.randrange(3, 500) for _ in range(PAGES * PAGE_TOKENS + 4)] for _ in range(4)]
_CACHED = PAGES * PAGE_TOKENS  # tokens of a prompt that can come from a cache
_STORE_S = 60.0
_POLL_S = 0.02
_SOURCES = ("device", "host", "storage")


@dataclass(frozen=True, slots=True)
class Round:
    """The prompts, once."""

    what: str
    answers: list[Answer]
    source: str
    """Where all of the prompts' whole pages come from; empty: they are computed."""
    seconds: float

    def agrees(self, computed: Round) -> bool:
        return all(a.agrees(b) for a, b in zip(self.answers, computed.answers, strict=True))

    def cached(self, source: str) -> int:
        return sum(answer.cached.get(source, 0) for answer in self.answers)


def say(words: str) -> None:
    print(f"demo-sglang: {words}", flush=True)


def generate(client: SGLangClient, what: str, source: str) -> Round:
    begin = time.perf_counter()
    answers = [client.generate(prompt) for prompt in PROMPTS]
    return Round(what, answers, source, time.perf_counter() - begin)


def wait_stored(server: str, pages: int) -> None:
    """Until the radix-server has so many pages; SGLang stores them behind the answers."""
    deadline = time.monotonic() + _STORE_S
    with radixshmem.RadixClient(server, read_only=True) as client:
        while (stored := client.total_blocks()) < pages:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{stored} pages were stored within {_STORE_S} s, not {pages}")
            time.sleep(_POLL_S)


def verdict(rounds: list[Round]) -> list[str]:
    """What went wrong."""
    problems = []
    for each in rounds:
        for number, (answer, cold) in enumerate(zip(each.answers, rounds[0].answers, strict=True)):
            expected = {each.source: _CACHED} if each.source else {}
            if answer.cached != expected:
                problems.append(f"{each.what}, prompt {number}: {answer.cached}, not {expected}")
            if not answer.agrees(cold):
                problems.append(f"{each.what}, prompt {number}: another output than when computed")
    return problems


def show(rounds: list[Round]) -> None:
    rows = [
        (
            each.what,
            *(f"{each.cached(source):,}" for source in _SOURCES),
            f"{each.seconds:.2f}",
            "yes" if each.agrees(rounds[0]) else "NO",
        )
        for each in rounds
    ]
    columns = ("cached tokens from", *_SOURCES, "seconds", "same tokens and logprobs")
    total = sum(len(prompt) for prompt in PROMPTS)
    print_table(f"KV pages of two SGLang servers in radixshmem, {total:,} tokens", columns, rows)


@contextlib.contextmanager
def two_servers() -> Iterator[tuple[str, SGLangServer, SGLangServer]]:
    """A radix-server's name, and two SGLang servers that start."""
    name = own_name("demo_sglang")
    with tempfile.TemporaryDirectory() as folder, radix_server(name, "--data-bytes", "64M"):
        model = str(Path(folder) / "model")
        make_model(model)
        with (
            SGLangServer(Path(folder) / "1.log", model, *native_flags(name)) as first,
            SGLangServer(Path(folder) / "2.log", model, *dynamic_flags(name)) as second,
        ):
            yield name, first, second


def run_demo(timeout_s: float) -> list[Round]:
    """Raises RuntimeError when a process fails, TimeoutError when one does not answer."""
    with two_servers() as (name, first, second):
        say("two SGLang servers start; that takes a minute, the first time two")
        first.wait(timeout_s)
        say("server 1 (--hicache-storage-backend radixshmem) computes the prompts, twice")
        rounds = [
            generate(first.client, "server 1, cold", ""),
            generate(first.client, "server 1, warm", "device"),
        ]
        wait_stored(name, len(PROMPTS) * PAGES)
        say("its caches of device and host are flushed, and the prompts come again")
        first.client.flush_cache()
        rounds.append(generate(first.client, "server 1, restored", "storage"))
        second.wait(timeout_s)
        say("server 2 (--hicache-storage-backend dynamic) gets the same prompts")
        rounds.append(generate(second.client, "server 2, restored", "storage"))
        return rounds


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Restore pages of real SGLang servers.")
    parser.add_argument("--json", default="", metavar="FILE", help="write the numbers here too")
    parser.add_argument(
        "--timeout", type=float, default=400.0, metavar="S", help="of a start (default 400)"
    )
    arguments = parser.parse_args(argv)
    try:
        rounds = run_demo(arguments.timeout)
    except (RuntimeError, TimeoutError) as error:
        print(f"demo-sglang: FAILED: {error}", file=sys.stderr)
        return 1
    show(rounds)
    problems = verdict(rounds)
    if arguments.json:
        report = {"rounds": [asdict(each) for each in rounds], "problems": problems}
        Path(arguments.json).write_text(json.dumps(report) + "\n", encoding="utf-8")
    for problem in problems:
        print(f"demo-sglang: FAILED: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("demo-sglang: interrupted; its servers are gone", file=sys.stderr)
        sys.exit(130)
