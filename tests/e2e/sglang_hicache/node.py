# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the tests hold beside an SGLang server: its radix-server, and gates in its storage."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

from e2e.harness import ServerProcess, eventually
from sglang_server import PAGE_TOKENS

from radixshmem import RadixClient, ServerNotReady

__all__ = ["BACK_S", "Gates", "Node", "prompt", "wait_reached"]

BACK_S = 10  # 5 s are promised; the rest is slack
TAG_BYTES = 8
_READY_S = 30.0
_SHM = Path("/dev/shm")


def prompt(seed: int, pages: int, more: int = 4) -> list[int]:
    """Of so many whole pages, and some tokens more: the last page is never taken from a cache."""
    dice = random.Random(seed)
    return [dice.randrange(3, 500) for _ in range(pages * PAGE_TOKENS + more)]


class Node:
    """A radix-server that comes and goes, and one that looks at its index."""

    def __init__(self, name: str, *flags: str) -> None:
        """`flags`: more ones of its radix-server."""
        self.name = name
        self._flags = flags
        self._server: ServerProcess | None = None
        self._client: RadixClient | None = None

    @property
    def running(self) -> bool:
        return self._server is not None

    def start(self, data_bytes: str = "16M", *, expect: str = "waiting") -> None:
        """`expect`: "waiting" for a geometry, or "adopted", what engines kept alive."""
        assert self._server is None
        self._server = ServerProcess(self.name, "--data-bytes", data_bytes, *self._flags)
        self._server.event(expect)

    def kill(self) -> None:
        """SIGKILL: the regions stay, as long as somebody uses them."""
        assert self._server is not None
        self._server.kill()
        self._server = None

    def stop(self) -> None:
        """As an operator does it: the regions go."""
        self.look_away()
        if self._server is not None:
            assert self._server.stop() == 0
            self._server = None

    def look_away(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def client(self) -> RadixClient:
        """Waits until an engine has told the geometry."""
        if self._client is None:
            self._client = RadixClient(self.name)
            self._client.wait_ready(_READY_S)
        return self._client

    def page_bytes(self) -> int:
        """Of a page in its slot; the tag follows."""
        geometry = self.client.geometry
        assert geometry is not None
        size: int = geometry["pools"]["full"]["slot_bytes"]
        return size - TAG_BYTES

    def wait_attached(self, engines: int = 1) -> None:
        """Until so many clients are there beside the server and the one of the tests."""
        eventually(lambda: self.engines() >= engines, "the engine has attached", BACK_S)

    def engines(self) -> int:
        """Clients beside the server and the one of the tests."""
        with contextlib.suppress(ServerNotReady, TimeoutError):
            rows = self.client.index._index.clients()
            return sum(row["alive"] for row in rows) - 2
        return 0

    def wait_pages(self, pages: int) -> None:
        """Until exactly so many pages are stored, and SGLang is done with storing them."""
        client = self.client
        eventually(
            lambda: client.mempool_used() == client.total_blocks() == pages,
            f"{pages} pages are stored",
        )

    def assert_idle(self) -> None:
        """Nothing is pinned, and every slot in use holds a page of the index."""
        client = self.client
        eventually(lambda: client.index._index.pins() == [], "no pins", BACK_S)
        eventually(lambda: client.mempool_used() == client.total_blocks(), "no slots", BACK_S)

    def close(self) -> None:
        """Fails when something of it is left."""
        self.stop()
        left = sorted(path.name for path in _SHM.glob(f"{self.name[1:]}*"))
        for file in left:
            (_SHM / file).unlink()
        assert not left, f"left in {_SHM}: {left}"


class Gates:
    """See gates/radixshmem_gates.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def hold(self, point: str, rank: int = 0) -> Iterator[Path]:
        """The storage stops at the point until the block is left; what is yielded, `reached` it."""
        gate = self.folder / f"{point}.{rank}"
        reached = self.folder / f"{point}.{rank}.reached"
        reached.unlink(missing_ok=True)
        gate.touch()
        try:
            yield reached
        finally:
            gate.unlink()


def wait_reached(mark: Path) -> None:
    eventually(mark.exists, f"the storage has reached the gate {mark.stem}")
