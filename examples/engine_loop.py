# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Several engine processes share one cache: each serves requests as an engine would.

For each request: pull what is cached (pinned), copy it out in bulk, compute the rest, store it.

    python examples/engine_loop.py
"""

from __future__ import annotations

import multiprocessing
import os

import numpy as np

from radixshmem import Geometry, RadixClient, RadixServer, ServerConfig, compute_hashes

BLOCK_TOKENS = 16
SLOT_BYTES = 4096
GEOMETRY = Geometry(BLOCK_TOKENS, SLOT_BYTES, fingerprint="demo-model@1")
REQUESTS_PER_ENGINE = 40


def request(engine: int, turn: int) -> np.ndarray:
    """A system prompt that all share, and a conversation of this engine that grows."""
    system = np.arange(16 * BLOCK_TOKENS)
    conversation = 100_000 * (engine + 1) + np.arange(turn * 4 * BLOCK_TOKENS)
    return np.concatenate([system, conversation])


def compute(hashes: np.ndarray) -> np.ndarray:
    """Stands for the model: the bytes of each block follow from its hash."""
    return np.repeat(hashes, SLOT_BYTES // 8).view(np.uint8).reshape(len(hashes), SLOT_BYTES)


def addresses(blocks: np.ndarray) -> np.ndarray:
    return blocks.ctypes.data + SLOT_BYTES * np.arange(len(blocks), dtype=np.uint64)


def serve(name: str, engine: int) -> None:
    sizes = np.array([SLOT_BYTES], np.uint64)
    hits = blocks = 0
    with RadixClient(name, GEOMETRY, group=f"engine-{engine}") as client:
        assert client.store is not None
        for turn in range(REQUESTS_PER_ENGINE):
            hashes = compute_hashes(request(engine, turn), BLOCK_TOKENS)
            cached = client.pull_async(hashes).wait()
            kv = np.empty((len(hashes), SLOT_BYTES), np.uint8)
            client.store.copy_out(cached.full_slots, addresses(kv[: cached.common_hit]), sizes)
            cached.finalize()

            new = hashes[cached.common_hit :]
            kv[cached.common_hit :] = compute(new)
            slots = client.allocate_slots(len(new))  # may be short: store what fits
            end = cached.common_hit + len(slots)
            client.store.copy_in(slots, addresses(kv[cached.common_hit : end]), sizes)
            client.insert(hashes[:end], slots, cached.common_hit)

            assert np.array_equal(kv, compute(hashes)), "wrong bytes"
            hits += cached.common_hit
            blocks += len(hashes)
    print(f"engine {engine}: {hits} of {blocks} blocks came from the cache", flush=True)


def main() -> None:
    name = f"/engine_loop_{os.getpid()}"
    spawn = multiprocessing.get_context("spawn")
    with RadixServer(ServerConfig(name, data_bytes="8M")) as server:
        engines = [spawn.Process(target=serve, args=(name, number)) for number in range(3)]
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.join()
        assert [engine.exitcode for engine in engines] == [0, 0, 0]
        counters = server.status()["counters"]
        print(
            f"{counters['hit_blocks']} of {counters['queried_blocks']} blocks hit in all, ", end=""
        )
        print(f"{counters['evicted_blocks']} evicted")


if __name__ == "__main__":
    main()
