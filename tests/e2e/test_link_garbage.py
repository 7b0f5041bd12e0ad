# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Clients that the garbage collector closes, wherever it happens to run."""

from __future__ import annotations

import gc
import threading

from e2e.harness import DEADLINE_S, GEOMETRY

from radixshmem_core.client import RadixClient
from radixshmem_core.link import _Watcher
from radixshmem_core.server import RadixServer


class Cycle:
    """Only the garbage collector ends it."""

    def __init__(self, client: RadixClient) -> None:
        self.client = client
        self.itself = self


def test_collector_may_close_a_client_inside_the_watcher(
    server: RadixServer, region_name: str
) -> None:
    with RadixClient(region_name, GEOMETRY) as client:
        watcher = _Watcher.current
        assert watcher is not None

        def collect() -> None:
            with watcher._guard:
                gc.collect()

        gc.disable()
        try:
            Cycle(RadixClient(region_name))
            before = len(watcher.links())
            thread = threading.Thread(target=collect, daemon=True)
            thread.start()
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        finally:
            gc.enable()
        assert len(watcher.links()) == before - 1
        assert client.mempool_free() == 256
