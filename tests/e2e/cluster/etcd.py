# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A real etcd server on a free loopback port, for tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from e2e.harness import DEADLINE_S
from free_port import free_port

__all__ = ["EtcdServer"]

_TRIES = 5  # a port that was free may be taken when etcd binds it


class EtcdServer:
    """One etcd. It keeps its port over `stop` and `start`; its leases may be as short as 1 s."""

    def __init__(self, directory: Path, tls: Sequence[str] = ()) -> None:
        assert shutil.which("etcd"), "no etcd; run `sh scripts/setup_system.sh etcd`"
        self._directory = directory
        self._data = directory / "etcd"
        self._scheme = "https" if tls else "http"
        self._tls = list(tls)
        self._process: subprocess.Popen[bytes] | None = None
        self._started = False
        for _ in range(_TRIES):
            self.port, self._peer_port = free_port(), free_port()
            if self._try_start():
                self._started = True
                return
        raise AssertionError(self._log())

    @property
    def url(self) -> str:
        return f"etcd://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert self._try_start(), self._log()

    def stop(self, number: int = signal.SIGKILL) -> None:
        """End it by its id. Its data stay."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(DEADLINE_S)
            self._process = None

    def wipe(self) -> None:
        """Begin again with nothing."""
        self.stop()
        shutil.rmtree(self._data)
        self.start()

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _try_start(self) -> bool:
        client = f"{self._scheme}://127.0.0.1:{self.port}"
        peer = f"http://127.0.0.1:{self._peer_port}"
        command = [
            *("etcd", "--name", "test", "--data-dir", str(self._data)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"test={peer}", "--heartbeat-interval", "20"),
            *("--election-timeout", "200", "--logger", "zap", "--log-level", "warn"),
            *self._tls,
        ]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
        with open(self._directory / "etcd.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + DEADLINE_S
        while self._process.poll() is None:
            assert time.monotonic() < deadline, self._log()
            if self._serves():
                return True
            time.sleep(0.02)
        self._process = None
        return False

    def _serves(self) -> bool:
        """One that is killed before it has a leader never has one again."""
        if self._tls:  # never started again
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0
        try:
            url = f"http://127.0.0.1:{self.port}/health"
            with urllib.request.urlopen(url, timeout=2) as reply:
                return json.load(reply) == {"health": "true"}
        except OSError:
            return False

    def _log(self) -> str:
        return f"etcd does not start:\n{(self._directory / 'etcd.log').read_text()[-2000:]}"
