# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A caller whose threads write to the arrays of a call in progress harms nobody but itself."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
from e2e.harness import DEADLINE_S, GEOMETRY, path_hashes

from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer
from radixshmem_core.values import InsertError


def test_index_stays_whole_when_arrays_change_during_an_insert(region_name: str) -> None:
    count = 3000
    config = ServerConfig(region_name, data_bytes="16M", prefault=False)
    with RadixServer(config), RadixClient(region_name, GEOMETRY) as client:
        slots = np.sort(client.allocate_slots(count))
        given = slots.copy()
        ended = threading.Event()

        def scramble() -> None:
            while not ended.is_set():
                given[:] = slots[::-1]
                given[:] = slots
                given[count // 2 :] = slots[: count // 2]

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        thread = threading.Thread(target=scramble)
        thread.start()
        try:
            inserted = 0
            end = time.monotonic() + DEADLINE_S
            while inserted < 60 and time.monotonic() < end:
                hashes = path_hashes(count, inserted)
                result = client.insert(hashes, given, auto_recycle=False)
                if result.error == InsertError.OK:
                    assert client._index.check() == []
                    client.reset()
                    slots = np.sort(client.allocate_slots(count))
                    inserted += 1
            assert inserted > 0
        finally:
            ended.set()
            thread.join()
            sys.setswitchinterval(interval)
