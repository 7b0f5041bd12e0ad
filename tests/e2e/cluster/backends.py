# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The registries that the contract tests run on, and the processes that join them."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.etcd import EtcdServer
from e2e.harness import Process

from radixshmem_core.cluster.registry import Registry, RegistryUnavailable, open_registry

__all__ = ["LONG_S", "SHORT_S", "Backend", "EtcdBackend", "FileBackend", "JoinerProcess", "kept"]

_clusters = itertools.count()
_RENEW_S = 0.1
LONG_S, SHORT_S = 30.0, 1.0
"""Leases that no test outlives, and those of tests that wait for the end of one."""


class Backend:
    """A place where registries can be opened, all of one cluster that no other test uses."""

    ttl_s = LONG_S

    def __init__(self, url: str) -> None:
        self.url = url
        self.cluster_id = f"test{next(_clusters)}"
        self._open: list[Registry] = []

    def open(self) -> Registry:
        self._open.append(open_registry(self.url, cluster_id=self.cluster_id, ttl_s=self.ttl_s))
        return self._open[-1]

    def close(self) -> None:
        for registry in self._open:
            registry.close()

    def wipe(self) -> None:
        """All data are gone."""
        raise NotImplementedError

    def drop(self, node: str) -> None:
        """The registration of a living node is gone."""
        raise NotImplementedError


class FileBackend(Backend):
    def __init__(self, directory: Path) -> None:
        super().__init__(f"file://{directory}")
        self._directory = directory

    def wipe(self) -> None:
        shutil.rmtree(self._directory)

    def drop(self, node: str) -> None:
        (self._directory / self.cluster_id / "members" / node).unlink()


class EtcdBackend(Backend):
    def __init__(self, server: EtcdServer) -> None:
        super().__init__(server.url)
        self._server = server

    def wipe(self) -> None:
        self._server.wipe()

    def drop(self, node: str) -> None:
        from etcd3gw.client import Etcd3Client

        client = Etcd3Client("127.0.0.1", self._server.port, api_path="/v3/")
        assert client.delete(f"/radixshmem/{self.cluster_id}/node/{node}")
        client.session.close()


@contextlib.contextmanager
def kept(registry: Registry) -> Iterator[None]:
    """Renew in the background, as a server does."""
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(_RENEW_S):
            with contextlib.suppress(RegistryUnavailable):
                registry.renew()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


_JOINER = """
import random, sys, time
from radixshmem_core.cluster.registry import open_registry
url, cluster, ttl, node, port, shift = sys.argv[1:]
real = time.time
time.time = lambda: real() + float(shift)
registry = open_registry(url, cluster_id=cluster, ttl_s=float(ttl))
instance = random.getrandbits(64)
print(registry.join(node, instance, "127.0.0.1", int(port)).rank, flush=True)
while True:
    registry.renew()
    time.sleep(0.1)
"""


class JoinerProcess(Process):
    """A process that joins, says its rank and renews until it is killed; its clock may be off."""

    def __init__(
        self, backend: Backend, node: str, *, port: int = 1, clock_off_s: float = 0
    ) -> None:
        where = backend.url, backend.cluster_id, str(backend.ttl_s)
        super().__init__("-c", _JOINER, *where, node, str(port), str(clock_off_s))

    def rank(self) -> int:
        return int(self.line())
