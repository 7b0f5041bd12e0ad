# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The manager under the calls of vLLM's scheduler, without an engine: answers, bytes, leaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.vllm_offload.fake_node import FakeNode
from e2e.vllm_offload.fake_request import Request
from e2e.vllm_offload.fake_scheduler import FakeScheduler

from radixshmem_core.server import RadixServer

A, B = list(range(10)), [*range(6), 100, 101, 102]

EACH_MODEL = pytest.mark.parametrize("model", ["llama", "gemma", "mamba"])

Start = Callable[..., tuple[FakeNode, FakeScheduler]]


@pytest.fixture(params=[False, True], ids=["0.32", "0.33"])
def start(request: pytest.FixtureRequest, region_name: str) -> Iterator[Start]:
    """A node and an engine on it; in the end nothing is pinned, pending or lost."""
    nodes: list[FakeNode] = []

    def begin(model: str = "llama", blocks: int = 64, ranks: int = 1, **options: Any) -> Any:
        node = FakeNode(region_name, model, blocks, ranks)
        nodes.append(node)
        node.options = {"end_last": request.param, **options}
        return node, node.engine()

    yield begin
    for node in nodes:
        try:
            for engine in node.engines:
                engine.drain()
            node.assert_idle()
        finally:
            node.close()


@EACH_MODEL
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_was_stored_is_found_whole(start: Start, model: str, ranks: int) -> None:
    node, engine = start(model, ranks=ranks)
    assert engine.run(engine.add(Request("cold", A))) == 0
    assert engine.run(engine.add(Request("local", A))) == 0
    engine.forget()
    assert engine.run(engine.add(Request("stored", A))) == 10
    assert engine.run(engine.add(Request("shared", B))) == 0  # in vLLM's own cache
    assert node.present(A) == 10
    assert node.present(B) == 9
    other = node.engine()
    assert other.run(other.add(Request("elsewhere", A))) == 10


@EACH_MODEL
def test_two_requests_of_one_step_store_their_prefix_once(start: Start, model: str) -> None:
    node, engine = start(model)
    for name, path in (("a", A), ("b", A)):
        engine.add(Request(name, path))
    for _ in range(4):
        engine.step(compute=10)
    assert node.client.mempool_used() == 10
    engine.drain()
    assert node.client.mempool_used() == 10


def test_generated_blocks_are_found_in_the_next_turn(start: Start) -> None:
    node, engine = start(lag=1)
    request = engine.add(Request("turn 1", A[:4]))
    for block in (50, 51, 52):
        engine.step()
        engine.step()
        request.append(block)
    engine.step()
    engine.abort(request)
    engine.drain()
    assert node.present([*A[:4], 50, 51, 52]) == 7
    engine.forget()
    assert engine.run(engine.add(Request("turn 2", [*A[:4], 50, 51, 52, 60]))) == 7


@EACH_MODEL
def test_a_preempted_request_waits_for_its_transfers(start: Start, model: str) -> None:
    node, engine = start(model)
    request = engine.add(Request("preempted", A))
    engine.slow_jobs = 5
    engine.step(compute=10)
    engine.preempt(request)
    engine.forget()
    engine.step()
    assert request.state == "waiting"
    assert engine.run(request) == 10
    assert node.present(A) == 10


def test_an_aborted_request_gives_back_what_it_held(start: Start) -> None:
    node, engine = start()
    engine.run(engine.add(Request("store", A)))
    engine.forget()
    engine.abort(engine.add(Request("queued", A)))
    engine.drain()
    for steps in range(4):
        request = engine.add(Request(f"after {steps} steps", A))
        engine.slow_jobs = 1
        for _ in range(steps):
            engine.step()
        engine.abort(request)  # the end of its load comes after its own
        engine.drain()
        assert node.client.index._index.pins() == []
        engine.forget()


@EACH_MODEL
def test_a_load_outlives_its_request(start: Start, model: str) -> None:
    node, engine = start(model, blocks=8)
    engine.run(engine.add(Request("store", A[:6])))
    engine.forget()
    request = engine.add(Request("aborted", A[:6]))
    engine.slow_jobs = 1
    engine.step()
    engine.abort(request)
    engine.step()
    other = node.engine()
    for i in range(2):
        other.run(other.add(Request(f"{i}", range(100 * i + 200, 100 * i + 208))))
    engine.drain()  # the load is compared with what was promised


def test_a_request_that_vllm_never_announced_may_end(start: Start) -> None:
    _, engine = start()
    engine._connector.request_finished_all_groups(Request("unknown", A), ([],))
    assert engine.manager._requests == {}


@EACH_MODEL
def test_waiting_for_room_pins_once_and_blocks_nobody(start: Start, model: str) -> None:
    node, engine = start(model, blocks=24)
    engine.run(engine.add(Request("store", A)))
    engine.forget()
    request = engine.add(Request("waits", A))
    engine.no_room = True
    for _ in range(5):
        engine.step()
        assert len(node.client.index._index.pins()) == 1
    other = node.engine()
    for i in range(4):
        other.run(other.add(Request(f"{i}", range(100 * i + 200, 100 * i + 209))))
    assert node.present(A) == 10, "what was promised is not evicted"
    engine.no_room = False
    assert engine.run(request) == 10


@EACH_MODEL
def test_a_failed_store_is_no_hit_and_is_made_up_for(start: Start, model: str) -> None:
    node, engine = start(model)
    request = engine.add(Request("fails", A))
    engine.failing_stores = 1
    engine.run(request)
    assert node.present(A) == 0
    engine.run(engine.add(Request("again", A)))  # from vLLM's own cache: offers all
    engine.forget()
    engine.run(engine.add(Request("whole", A)))
    engine.forget()
    assert engine.run(engine.add(Request("found", A))) == 10


@EACH_MODEL
def test_a_failed_load_is_not_tried_again(start: Start, model: str) -> None:
    _, engine = start(model)
    engine.run(engine.add(Request("store", A)))
    engine.forget()
    request = engine.add(Request("fails", A))
    engine.failing_loads = 1
    assert engine.run(request) == 0
    engine.forget()
    assert engine.run(engine.add(Request("another", A))) == 10


_OTHERS = [range(100 * i + 200, 100 * i + 208) for i in range(3)]


def _fill(engine: FakeScheduler) -> None:
    """Store into all slots that can be had."""
    for path in _OTHERS:
        engine.run(engine.add(Request(f"{path}", path)))


@EACH_MODEL
@pytest.mark.parametrize("lag", [0, 1, 3])
def test_slots_being_written_at_a_reset_are_nobody_elses(
    start: Start, model: str, lag: int
) -> None:
    node, engine = start(model, blocks=8, lag=lag)
    other = node.engine()
    engine.slow_jobs = 9
    engine.add(Request("store", A[:6]))
    engine.step(compute=6)
    engine.reset()
    for _ in range(lag):  # the workers have not heard of it yet
        engine.step(compute=0)
    _fill(other)
    engine.drain()
    for path in _OTHERS:
        node.present(path)
    node.present(A[:6])


@EACH_MODEL
@pytest.mark.parametrize("lag", [0, 1, 3])
def test_slots_being_read_at_a_reset_keep_their_bytes(start: Start, model: str, lag: int) -> None:
    node, engine = start(model, blocks=8, lag=lag)
    engine.run(engine.add(Request("store", A[:6])))
    engine.forget()
    other = node.engine()
    engine.slow_jobs = 1
    request = engine.add(Request("load", A[:6]))
    engine.step()
    assert request.state == "loading"
    engine.reset()
    _fill(other)
    for _ in range(3 + lag):  # the load is compared with what was promised
        engine.step()
    assert request.state == "running"


@EACH_MODEL
def test_requests_that_ended_before_a_reset_are_forgotten(start: Start, model: str) -> None:
    _, engine = start(model)
    engine.run(engine.add(Request("store", A)))
    engine.forget()
    request = engine.add(Request("load", A))
    engine.slow_jobs = 1
    engine.step()
    engine.abort(request)
    engine.step()  # the manager has been told of the end, not of that of the load
    engine.reset()
    assert engine.manager._requests == {}


@EACH_MODEL
def test_a_path_longer_than_the_pool_is_stored_in_part(start: Start, model: str) -> None:
    node, engine = start(model, blocks=8)
    engine.run(engine.add(Request("long", range(20))))
    engine.forget()
    assert node.present(range(20)) == 8
    # vLLM stores windows for the end of a prompt alone, and this one's does not fit.
    hit = 8 if model == "llama" else 0
    assert engine.run(engine.add(Request("again", range(20)))) == hit


@EACH_MODEL
def test_a_server_that_is_replaced_costs_misses(start: Start, model: str) -> None:
    node, engine = start(model)
    engine.server_may_go = True
    engine.run(engine.add(Request("store", A)))
    engine.forget()
    engine.slow_jobs = 9
    loading, storing = Request("load", A), Request("storing", B)
    engine.add(storing)
    engine.step()
    engine.add(loading)
    engine.step()
    node.server.close()
    assert engine.run(loading) == 0
    node.server = RadixServer(node.config).start()
    node.reconnect()
    for name in ("store again", "found again"):
        engine.forget()
        hit = engine.run(engine.add(Request(name, A)))
    assert hit == 10
