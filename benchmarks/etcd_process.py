# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""An etcd of our own for as long as a `with` block lasts."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from cluster_machines import Machine
from free_port import free_port

__all__ = ["etcd_server"]

_START_TIMEOUT_S = 30.0


@contextlib.contextmanager
def etcd_server(node: Machine, folder: Path, port: int) -> Iterator[str]:
    """Runs on `node`; the registry URL for radix-server. On loopback at a free port, not `port`."""
    if shutil.which("etcd") is None:
        raise RuntimeError("etcd is not installed; run: apt-get install etcd-server")
    peer_port = port + 1
    if not node.isolated:
        port, peer_port = free_port(), free_port()
    client, peer = f"http://{node.address}:{port}", f"http://{node.address}:{peer_port}"
    command = ["etcd", "--data-dir", str(folder / "etcd"), "--listen-client-urls", client]
    command += ["--advertise-client-urls", client, "--listen-peer-urls", peer]
    command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    with (folder / "etcd.log").open("w") as log:
        process = subprocess.Popen(
            [*_enter_network(node), *command], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _await(process, [*_enter_network(node)], f"{client}/health", folder / "etcd.log")
        yield f"etcd://{node.address}:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _enter_network(node: Machine) -> tuple[str, ...]:
    return node.first[:4]  # ip netns exec NAME; nothing on loopback


def _await(process: subprocess.Popen[bytes], enter: list[str], url: str, log: Path) -> None:
    probe = "import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=1)"
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        done = subprocess.run(
            [*enter, "python3", "-c", probe, url], capture_output=True, check=False
        )
        if done.returncode == 0:
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(
                f"etcd does not answer at {url}; it said:\n{log.read_text()[-2000:]}"
            )
        time.sleep(0.1)
