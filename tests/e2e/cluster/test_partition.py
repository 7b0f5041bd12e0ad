# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A network that fails between two nodes, each in a network namespace of its own, and heals."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import GEOMETRY, ServerProcess, eventually, path_hashes

from radixshmem_core.client import RadixClient

_ADDRESSES = ("10.213.7.1", "10.213.7.2")
_HEALED_S = 5.0
_SLACK_S = 5.0  # a busy machine


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def _why_not() -> str:
    """Why there can be no network namespaces here; empty when there can."""
    if shutil.which("ip") is None:
        return "there is no ip(8)"
    probe = f"radixtest-{os.getpid()}-probe"
    try:
        _ip("netns", "add", probe)
        _ip("netns", "del", probe)
    except subprocess.CalledProcessError as error:
        return f"ip netns add: {error.stderr.strip()}"
    return ""


REASON = _why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON or "-")


class _Server(ServerProcess):
    """A radix-server in a network namespace."""

    def __init__(self, space: str, name: str, *flags: str) -> None:
        command = ["ip", "netns", "exec", space, sys.executable, "-m", "radixshmem_core.cli"]
        command += ["start", "--json", "--name", name, *flags]
        super(ServerProcess, self).__init__("-c", f"import os; os.execvp('ip', {command!r})")


class _Link:
    """Two namespaces with a cable between them."""

    def __init__(self, undo: ExitStack) -> None:
        self.spaces = [f"radixtest-{os.getpid()}-{side}" for side in "ab"]
        for space in self.spaces:
            _ip("netns", "add", space)
            undo.callback(_ip, "netns", "del", space)
        a, b = self.spaces
        _ip("-n", a, "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", b)
        for space, address in zip(self.spaces, _ADDRESSES, strict=True):
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", space, "link", "set", device, "up")

    def set(self, state: str) -> None:
        _ip("-n", self.spaces[0], "link", "set", "eth0", state)


@pytest.fixture
def link() -> Iterator[_Link]:
    with ExitStack() as undo:
        yield _Link(undo)


class _LocalHits:
    """Looks at a node's own path all the time."""

    def __init__(self, clients: list[RadixClient], paths: list[Any]) -> None:
        self._clients, self._paths = clients, paths
        self.misses = self.looks = 0
        self.slowest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            for client, path in zip(self._clients, self._paths, strict=True):
                begin = time.monotonic()
                self.misses += client.query(path).common_hit != len(path)
                self.slowest_s = max(self.slowest_s, time.monotonic() - begin)
                self.looks += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("down_s", [1.0, 8.0], ids=["short", "long"])
def test_local_hits_never_stop_and_remote_ones_return(
    link: _Link,
    region_name: str,
    tmp_path: Path,
    processes: Callable[..., Any],
    down_s: float,
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    flags = (
        *("--data-bytes", "1M", "--registry", f"file://{tmp_path}/registry"),
        *("--cluster-token-file", str(token), "--index-transport", "tcp", "--settle-ms", "50"),
        *("--transfer-backend", "builtin"),
    )
    names = [f"{region_name}_{number}" for number in range(2)]
    servers = []
    for name, space, address in zip(names, link.spaces, _ADDRESSES, strict=True):
        where = ("--rpc-address", address, "--node-name", address)
        servers.append(processes(_Server, space, name, *where, *flags))
        servers[-1].event("waiting")
    with ExitStack() as ends:
        clients = [ends.enter_context(RadixClient(name, GEOMETRY)) for name in names]
        paths = [path_hashes(30, number) for number in range(2)]
        for client, path in zip(clients, paths, strict=True):
            assert client.insert(path, client.allocate_slots(30)).error == 0

        def remote() -> list[int]:
            return [c.query(p).common_hit for c, p in zip(clients, paths[::-1], strict=True)]

        eventually(lambda: remote() == [30, 30], "they find each other's")
        local = _LocalHits(clients, paths)
        ends.callback(local.stop)
        link.set("down")
        eventually(lambda: remote() == [0, 0], "the other one is away")
        until = time.monotonic() + down_s
        eventually(lambda: time.monotonic() > until, "it is away for a while")
        new = path_hashes(30, 7)  # while they cannot speak to each other
        assert clients[0].insert(new, clients[0].allocate_slots(30)).error == 0
        link.set("up")
        eventually(lambda: remote() == [30, 30], "they are back", _HEALED_S + _SLACK_S)
        eventually(lambda: clients[1].query(new).common_hit == 30, "what came meanwhile, too")
        result = clients[1].pull_async(paths[0], timeout_ms=5000).wait(10)
        assert result.common_hit == 30
        result.finalize()
        local.stop()
        assert local.looks > 100
        assert local.misses == 0
    for server in servers:
        assert server.stop() == 0
