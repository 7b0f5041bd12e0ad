# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""An engine of a data plane driven bare, as its documentation does: what pulls are compared with.

Usage: bare_engine.py BACKEND OWNER              prints metadata, serves until stdin ends
       bare_engine.py BACKEND READER METADATA    for each line of stdin: reads, prints the seconds
The reader reads IN_FLIGHT times BLOCKS blocks of BLOCK_BYTES, each time into the same places.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import mmap
import os
import sys
import threading
import time
from typing import Any

BLOCKS = 64
BLOCK_BYTES = 1 << 20
IN_FLIGHT = 4
_SIZE = IN_FLIGHT * BLOCKS * BLOCK_BYTES

_memory = mmap.mmap(-1, _SIZE)
_base = ctypes.addressof(ctypes.c_char.from_buffer(_memory))


def _places(base: int, pull: int) -> list[int]:
    return [base + (pull * BLOCKS + block) * BLOCK_BYTES for block in range(BLOCKS)]


class Mooncake:
    """Synchronous batches, each in a thread of its own."""

    def __init__(self) -> None:
        os.environ.update(MC_FORCE_TCP="1", MC_LOG_LEVEL="ERROR")
        self._engine = importlib.import_module("mooncake.engine").TransferEngine()
        if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("mooncake does not start")
        self._engine.register_memory(_base, _SIZE)

    def metadata(self) -> str:
        return json.dumps([_base, f"127.0.0.1:{self._engine.get_rpc_port()}"])

    def connect(self, metadata: str) -> None:
        self._peer_base, self._peer = json.loads(metadata)

    def read(self) -> None:
        threads = [threading.Thread(target=self._read, args=(n,)) for n in range(IN_FLIGHT)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _read(self, pull: int) -> None:
        here, there = _places(_base, pull), _places(self._peer_base, pull)
        lengths = [BLOCK_BYTES] * BLOCKS
        if self._engine.batch_transfer_sync_read(self._peer, here, there, lengths) != 0:
            os._exit(1)


class Nixl:
    """Requests that are posted one after the other and then polled."""

    def __init__(self) -> None:
        os.environ.update(UCX_NET_DEVICES="lo", UCX_LOG_LEVEL="error", UCX_MODULES="^ib")
        os.environ["NIXL_LOG_LEVEL"] = "ERROR"  # it logs to stdout
        nixl = importlib.import_module("nixl_cu12")
        self._agent: Any = nixl.nixl_agent(f"bare-{os.getpid()}")
        self._agent.register_memory([(_base, _SIZE, 0, "")], "DRAM")

    def metadata(self) -> str:
        return json.dumps([_base, base64.b64encode(self._agent.get_agent_metadata()).decode()])

    def connect(self, metadata: str) -> None:
        self._peer_base, encoded = json.loads(metadata)
        self._peer = self._agent.add_remote_agent(base64.b64decode(encoded))

    def read(self) -> None:
        handles = []
        for pull in range(IN_FLIGHT):
            here, there = (
                self._agent.get_xfer_descs(
                    [(place, BLOCK_BYTES, 0) for place in _places(base, pull)], "DRAM"
                )
                for base in (_base, self._peer_base)
            )
            handles.append(self._agent.initialize_xfer("READ", here, there, self._peer))
            self._agent.transfer(handles[-1])
        for handle in handles:
            while (state := self._agent.check_xfer_state(handle)) == "PROC":
                time.sleep(0.0001)
            if state != "DONE":
                os._exit(1)
            self._agent.release_xfer_handle(handle)


def main() -> None:
    backend, role, *rest = sys.argv[1:]
    engine: Any = {"mooncake": Mooncake, "nixl": Nixl}[backend]()
    ctypes.memset(_base, 1 if role == "OWNER" else 0, _SIZE)
    if role == "OWNER":
        print(engine.metadata(), flush=True)
        sys.stdin.read()
        os._exit(0)
    engine.connect(rest[0])
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        engine.read()
        taken = time.perf_counter() - begin
        if _memory[0] != 1 or _memory[_SIZE - 1] != 1:
            raise RuntimeError("the bytes of the owner did not arrive")
        print(taken, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
