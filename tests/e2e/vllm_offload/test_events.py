# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""KV events: a router that follows them never believes a block cached that is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from e2e.vllm_offload.engines import BLOCK, Engine, Prompt, prompt
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import BlockRemoved, BlockStored

from radixshmem import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

A = prompt(1, 10 * BLOCK + 4)


class Router:
    """Listens to an engine, and remembers which blocks are said to be in the shared cache."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stored: dict[Any, BlockStored] = {}
        scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
        monkeypatch.setattr(scheduler.kv_event_publisher, "publish", self._hear)

    def _hear(self, batch: Any) -> None:
        for event in batch.events:
            if isinstance(event, BlockStored) and event.medium == "CPU":
                for block_hash in event.block_hashes:
                    self.stored[block_hash] = event
            if isinstance(event, BlockRemoved) and event.medium == "CPU":
                for block_hash in event.block_hashes:
                    self.stored.pop(block_hash, None)

    def prefix_blocks(self, tokens: Prompt) -> int:
        """How many leading blocks of the prompt are said to be there."""
        parent, depth = None, 0
        by_parent = {e.parent_block_hash: (h, e) for h, e in self.stored.items()}
        while parent in by_parent:
            parent, event = by_parent[parent]
            if event.token_ids != tokens[depth * BLOCK : (depth + 1) * BLOCK]:
                break
            depth += 1
        return depth


@pytest.fixture
def start(
    llama: str, start_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[Engine, Router]]:
    def start() -> tuple[Engine, Router]:
        events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        engine = start_engine(llama, kv_events_config=events)
        return engine, Router(engine, monkeypatch)

    return start


@pytest.fixture
def telling(region_name: str) -> Any:
    """A server that tells what it evicts."""
    config = ServerConfig(region_name, data_bytes=24 * 65536, kvevent_ring_capacity=1024)
    with RadixServer(config) as running:
        yield running


def test_blocks_are_announced_when_stored_and_when_found(
    telling: RadixServer, start: Callable[[], tuple[Engine, Router]]
) -> None:
    engine, router = start()
    engine.generate([A])
    engine.settle()
    assert router.prefix_blocks(A) == len(router.stored) == 10
    assert {event.block_size for event in router.stored.values()} == {BLOCK}

    engine, router = start()
    assert router.stored == {}
    assert engine.generate([A])[1] == [10 * BLOCK]
    engine.settle()
    assert router.prefix_blocks(A) == len(router.stored) == 10


def test_evictions_by_another_process_are_taken_back(
    telling: RadixServer, region_name: str, start: Callable[[], tuple[Engine, Router]]
) -> None:
    engine, router = start()
    engine.generate([A])
    engine.settle()
    with RadixClient(region_name) as other:
        other.wait_ready(10)
        other.recycle_slots(other.allocate_slots(18))
        left = other.total_blocks()
    assert left < 10
    engine.settle()
    assert router.prefix_blocks(A) == len(router.stored) == left
    tracker = engine.connector.connector_scheduler._events_tracker
    assert len(tracker._pending_event_metadata) == left, "nothing piles up"
    engine.forget()
    assert engine.generate([A])[1] == [left * BLOCK]


def test_what_is_not_looked_up_is_not_announced(
    telling: RadixServer, start: Callable[[], tuple[Engine, Router]]
) -> None:
    engine, router = start()
    engine.store([A])
    engine.generate([A[: 4 * BLOCK + 2]], 1)
    assert engine.manager._events is not None
    engine.manager._events.forget()  # as after an overrun
    engine.settle()
    assert router.stored == {}
    assert engine.generate([A])[1] == [10 * BLOCK]
    engine.settle()
    assert len(router.stored) == 6, "4 blocks vLLM had itself"
    assert {event.block_size for event in router.stored.values()} == {BLOCK}, "complete"


def test_a_reset_takes_everything_back(
    telling: RadixServer, start: Callable[[], tuple[Engine, Router]]
) -> None:
    engine, router = start()
    engine.generate([A])
    engine.settle()
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    engine.settle()
    assert router.stored == {}


def test_a_store_that_failed_is_not_announced_and_not_remembered(
    telling: RadixServer,
    start: Callable[[], tuple[Engine, Router]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, router = start()
    with monkeypatch.context() as broken:
        engine.fail_copies(broken)
        engine.generate([A])
        engine.settle()
    assert router.stored == {}
    tracker = engine.connector.connector_scheduler._events_tracker
    assert tracker._pending_event_metadata == {}


def test_a_server_without_a_ring_is_named_and_nothing_is_told(
    cache: RadixServer,
    start: Callable[[], tuple[Engine, Router]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, router = start()
    assert "--kvevent-ring-capacity" in caplog.text
    engine.generate([A])
    engine.settle()
    assert engine.manager._client.total_blocks() == 10
    assert router.stored == {}
