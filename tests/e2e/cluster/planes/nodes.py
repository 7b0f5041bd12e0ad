# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The processes of the contract suite, seen from the test."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.harness import DEADLINE_S, Process, eventually

SLOTS_BYTES = 16 << 20  # as in plane_process.py

Blocks = list[list[int]]
"""Remote offsets, local offsets, lengths."""


@dataclass(frozen=True)
class Case:
    """A backend to run the suite on. A new one joins with a line in CASES."""

    backend: str
    protocol: str = ""
    one_sided: bool = False  # here, on one host: reads go on while the peer is stopped
    outlived: bool = False  # and after its death: its memory stays as long as it is mapped

    @property
    def dead(self) -> str:
        """What becomes of a read from a peer that has died."""
        return "done" if self.outlived else "failed"

    def __str__(self) -> str:
        return f"{self.backend}-{self.protocol}" if self.protocol else self.backend


CASES = [
    Case("builtin", one_sided=True, outlived=True),
    Case("mooncake", "tcp"),
    Case("nixl", "tcp"),
    # Between processes of one host; the tests of pulls use it too.
    pytest.param(Case("nixl", one_sided=True), marks=pytest.mark.slow),
]


class Failed(Exception):
    """What a command of a node answered with."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class Node(Process):
    """A process with slots that hold the bytes of `seed`; 0: the same byte everywhere."""

    def __init__(self, region: str, case: Case, seed: int) -> None:
        self.region = region
        self.seed = seed
        program = str(Path(__file__).with_name("plane_process.py"))
        super().__init__(program, region, case.backend, case.protocol, str(seed))
        self._ids = itertools.count()

    def started(self) -> Node:
        self.line()
        return self

    def children(self) -> list[int]:
        """Processes of the plane's own."""
        lists = [path.read_text() for path in Path(f"/proc/{self.pid}/task").glob("*/children")]
        return [int(word) for text in lists for word in text.split()]

    def signal(self, number: int) -> None:
        for pid in [*self.children(), self.pid]:
            os.kill(pid, number)

    def kill_only(self) -> None:
        children = self.children()
        self.signal(signal.SIGKILL)
        super().kill_only()
        for pid in children:
            eventually(lambda pid=pid: not Path(f"/proc/{pid}/exe").exists(), f"{pid} is dead")

    def kill(self) -> None:
        for pid in self.children():  # one that is stopped would hold our pipes open
            os.kill(pid, signal.SIGKILL)
        super().kill()
        for end in ("", "_data", ".sock", ".live"):
            Path(f"/dev/shm{self.region}{end}").unlink(missing_ok=True)

    def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        self.tell(json.dumps({"do": command, **arguments}))
        answer: dict[str, Any] = json.loads(self.line())
        if "error" in answer:
            raise Failed(answer["error"], answer["text"])
        return answer

    def end_input(self) -> None:
        """Lets the program come to its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    @property
    def metadata(self) -> str:
        return str(self.do("metadata")["metadata"])

    def connect(self, peer: tuple[int, int], owner: Node) -> None:
        self.do("connect", peer=peer, metadata=owner.metadata)

    def read(self, peer: tuple[int, int], blocks: Blocks) -> str:
        transfer = str(next(self._ids))
        self.do("read", transfer=transfer, peer=peer, blocks=blocks)
        return transfer

    def finish(self, transfer: str, deadline_s: float = DEADLINE_S) -> str:
        return str(self.do("wait", transfer=transfer, deadline_s=deadline_s)["state"])

    def expect(self, owner: Node, blocks: Blocks) -> None:
        self.do("expect", seed=owner.seed, blocks=blocks)

    def wrong_bytes(self) -> int:
        return int(self.do("wrong_bytes")["wrong"])

    def fetch_at_last(self, peer: tuple[int, int], owner: Node, blocks: Blocks) -> None:
        """Fetch from an owner that has been in trouble: it may have to be known anew."""
        deadline = time.monotonic() + DEADLINE_S
        while (state := self.finish(self.read(peer, blocks))) == "failed":
            eventually(lambda: self._knows_anew(peer, owner), "the owner has metadata", DEADLINE_S)
            assert time.monotonic() < deadline
        assert state == "done"
        self.expect(owner, blocks)
        assert self.wrong_bytes() == 0

    def _knows_anew(self, peer: tuple[int, int], owner: Node) -> bool:
        try:
            self.connect(peer, owner)
        except Failed as error:
            if "is starting again" not in error.text:
                raise
            return False
        return True

    def fetch(self, peer: tuple[int, int], owner: Node, blocks: Blocks) -> None:
        """Read, and see that exactly these bytes have arrived."""
        state = self.finish(self.read(peer, blocks))
        assert state == "done"
        self.expect(owner, blocks)
        assert self.wrong_bytes() == 0


Start = Callable[..., Node]


def spread(count: int, low: int, high: int, seed: int = 0) -> Blocks:
    """Blocks of `low` to `high` bytes in any order, at any offset, apart from each other."""
    rng = np.random.default_rng(seed)
    places = rng.permutation(SLOTS_BYTES // high)[:count]
    lengths = rng.integers(low, high + 1, count)
    local = places * high + rng.integers(0, high - lengths + 1)
    remote = rng.integers(0, SLOTS_BYTES - lengths + 1)
    return [remote.tolist(), local.tolist(), lengths.tolist()]
