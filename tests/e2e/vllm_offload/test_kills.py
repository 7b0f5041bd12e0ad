# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Engines in several processes on one server: they share, and any of them may be killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.harness import ServerProcess, eventually
from e2e.vllm_offload.engines import BLOCK, Engine, prompt
from e2e.vllm_offload.replicas import Replica

from radixshmem import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

PROMPTS = [prompt(40 + i, 7 * BLOCK + 4) for i in range(4)]
A, B = PROMPTS[:2]
BACK_S = 10  # 5 s are promised; the rest is slack


@pytest.fixture(scope="module")
def want(llama: str, reference: Any) -> list[list[int]]:
    tokens: list[list[int]] = reference.tokens(llama, PROMPTS)
    return tokens


@pytest.fixture
def start_replica(llama: str, want: Any, region_name: str) -> Iterator[Callable[..., Replica]]:
    """Starts engines in processes of their own; those that still run at the end are killed."""
    started: list[Replica] = []

    def start(model: str = llama, server: str = region_name) -> Replica:
        started.append(Replica(model, server))
        return started[-1]

    yield start
    for replica in started:
        replica.kill()


@pytest.fixture
def observer(cache: RadixServer, region_name: str) -> Iterator[RadixClient]:
    """One that looks at the index; it is there when the first engine has come."""
    with RadixClient(region_name) as client:
        yield client


@pytest.fixture
def replica(start_replica: Callable[..., Replica], observer: RadixClient) -> Replica:
    replica = start_replica()
    replica.wait_started()
    observer.wait_ready(10)
    return replica


def test_an_engine_killed_while_it_stores_leaves_nothing(
    llama: str,
    want: list[list[int]],
    observer: RadixClient,
    replica: Replica,
    start_engine: Callable[..., Engine],
) -> None:
    replica.ask("stop inside", "store")
    slots = replica.ask("generate", [A])
    assert len(slots) == 7
    assert observer.mempool_used() == 7
    assert observer.total_blocks() == 0
    replica.kill()
    eventually(lambda: observer.mempool_used() == 0, "its slots are free", BACK_S)
    engine = start_engine(llama)
    assert engine.generate([A]) == (want[:1], [0])
    engine.settle()
    engine.forget()
    assert engine.generate([A]) == (want[:1], [7 * BLOCK])
    engine.assert_idle()


def test_an_engine_killed_while_it_loads_leaves_no_pin(
    llama: str,
    want: list[list[int]],
    observer: RadixClient,
    replica: Replica,
    start_engine: Callable[..., Engine],
) -> None:
    replica.ask("store", [A])
    replica.ask("stop inside", "load")
    assert len(replica.ask("generate", [A])) == 7
    assert observer.index._index.pins() != []
    replica.kill()
    eventually(lambda: observer.index._index.pins() == [], "its pins are gone", BACK_S)
    assert observer.mempool_used() == observer.total_blocks() == 7
    engine = start_engine(llama)
    assert engine.generate([A]) == (want[:1], [7 * BLOCK])
    engine.assert_idle()


def test_engines_of_two_processes_share_under_load(
    llama: str,
    want: list[list[int]],
    region_name: str,
    start_replica: Callable[..., Replica],
    start_engine: Callable[..., Engine],
) -> None:
    with RadixServer(ServerConfig(region_name, data_bytes=24 * 65536)):  # not room for all
        replica = start_replica()
        engine = start_engine(llama)
        engine.store([A])
        replica.wait_started()
        assert replica.ask("generate", [A]) == (want[:1], [7 * BLOCK])
        replica.ask("store", [B])
        assert engine.generate([B]) == (want[1:2], [7 * BLOCK])
        replica.tell("load", PROMPTS, want)
        for order in ([3, 2, 1, 0], [1, 3], [0, 2], [2, 3, 0, 1], [0], [1, 2, 3]):
            tokens, _ = engine.generate([PROMPTS[i] for i in order])
            assert tokens == [want[i] for i in order]
            engine.forget()
        rounds, wrong = replica.ask("stop")
        assert rounds > 0
        assert wrong == 0
        replica.kill()
        engine.settle()
        client = engine.manager._client
        eventually(
            lambda: client.mempool_used() == client.total_blocks(), "its slots are free", BACK_S
        )
        engine.assert_idle()


def test_two_models_work_on_two_servers(
    llama: str,
    gemma: str,
    want: list[list[int]],
    reference: Any,
    cache: RadixServer,
    region_name: str,
    start_replica: Callable[..., Replica],
    start_engine: Callable[..., Engine],
) -> None:
    (other,) = reference.tokens(gemma, [A])
    with RadixServer(ServerConfig(f"{region_name}b", data_bytes="16M", swa_ratio=0.4)):
        replica = start_replica(gemma, f"{region_name}b")
        engine = start_engine(llama)
        engine.store([A])
        replica.wait_started()
        replica.ask("store", [A])
        assert engine.generate([A]) == (want[:1], [7 * BLOCK])
        assert replica.ask("generate", [A]) == ([other], [7 * BLOCK])
        replica.kill()


def test_a_closed_server_is_told_once(
    gemma: str,
    reference: Any,
    region_name: str,
    start_engine: Callable[..., Engine],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not for each lookup, of which there is one for each block of each group."""
    want = reference.tokens(gemma, [A])
    with RadixServer(ServerConfig(region_name, data_bytes="16M", swa_ratio=0.4)):
        engine = start_engine(gemma)
        engine.store([A])
    for _ in range(3):
        assert engine.generate([A]) == (want, [0])
        engine.settle()
        engine.forget()
    told = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1, told
    assert "until it is back" in told[0].getMessage()
    assert engine.manager.figures.lost_servers == 1


def test_servers_come_and_go_under_load(
    want: list[list[int]],
    region_name: str,
    start_server: Callable[..., ServerProcess],
    start_replica: Callable[..., Replica],
) -> None:
    def blocks() -> int:
        with RadixClient(region_name) as client:
            client.wait_ready(BACK_S)
            return client.total_blocks()

    size = str(24 * 65536)
    first = start_server(data_bytes=size)
    first.event("waiting")
    replica = start_replica()
    replica.wait_started()
    replica.tell("load", PROMPTS, want)
    eventually(lambda: blocks() > 0, "it stores")
    first.kill()
    second = start_server(data_bytes=size)
    second.event("adopted")
    eventually(lambda: blocks() > 0, "it goes on")
    assert second.stop(signal.SIGTERM) == 0
    third = start_server(data_bytes=size)
    third.event("waiting")
    back = time.monotonic()
    eventually(lambda: blocks() > 0, "it stores in the server that came back", BACK_S)
    assert time.monotonic() - back < BACK_S
    rounds, wrong = replica.ask("stop")
    assert rounds > 0
    assert wrong == 0
    replica.kill()
    assert third.stop() == 0
