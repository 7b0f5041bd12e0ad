# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The spec under vLLM's own OffloadingConnector."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
from e2e.vllm_offload import contracts
from e2e.vllm_offload.engines import BLOCK, Engine, prompt
from vllm.config import KVTransferConfig
from vllm.v1.kv_offload.base import ReqContext, make_offload_key

from radixshmem import RadixError
from radixshmem.integrations.vllm_offload import RadixShmemOffloadingSpec, bare
from radixshmem_core.server import RadixServer

A = prompt(1, 10 * BLOCK + 4)

needs_positions = pytest.mark.skipif(
    bare._POSITIONS not in {field.name for field in dataclasses.fields(ReqContext)},
    reason="OffloadingConnector of vLLM 0.30 notes no positions: the spec is refused there",
)


@pytest.fixture
def want(llama: str, reference: Any) -> list[list[int]]:
    tokens: list[list[int]] = reference.tokens(llama, [A])
    return tokens


def _transfer(server: str) -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "spec_name": "RadixShmemOffloadingSpec",
            "spec_module_path": "radixshmem.integrations.vllm_offload",
            "server_name": server,
        },
    )


@pytest.fixture
def start(
    llama: str, cache: RadixServer, start_engine: Callable[..., Engine], region_name: str
) -> Callable[..., Engine]:
    return functools.partial(start_engine, llama, transfer=_transfer(region_name))


@needs_positions
def test_blocks_are_stored_and_restored(
    want: list[list[int]], start: Callable[..., Engine], reference: Any, llama: str
) -> None:
    first = prompt(4, 3 * BLOCK + 4)
    (answer,) = reference.tokens(llama, [first], 70)
    second = [*first, *answer, *prompt(5, 9)]
    then = reference.tokens(llama, [second])
    engine = start()
    assert isinstance(engine.manager, bare.BareManager)
    assert engine.generate([A]) == (want, [0])
    engine.settle()
    assert engine.manager._client.total_blocks() == 10
    engine.forget()
    assert engine.generate([A]) == (want, [10 * BLOCK]), "from the shared cache"
    engine.assert_idle()

    assert engine.generate([first], 70) == ([answer], [0])
    engine.settle()
    engine.forget()
    assert engine.generate([second]) == (then, [5 * BLOCK])
    engine.assert_idle()


@needs_positions
def test_it_shares_a_server_with_the_connector(
    want: list[list[int]],
    start: Callable[..., Engine],
    llama: str,
    start_engine: Callable[..., Engine],
) -> None:
    start().store([A])
    second = start_engine(llama)
    assert not isinstance(second.manager, bare.BareManager)
    assert second.generate([A]) == (want, [10 * BLOCK])
    second.assert_idle()


@needs_positions
def test_requests_that_wait_for_room_are_looked_up_anew(
    llama: str, reference: Any, start: Callable[..., Engine]
) -> None:
    four = [prompt(20 + i, 200) for i in range(4)]
    want = reference.tokens(llama, four, 100)
    engine = start(blocks=34)
    engine.assert_comes_back(four, want)
    assert engine.manager._round_of == {}


@needs_positions
def test_a_reset_brings_all_slots_back(
    want: list[list[int]], start: Callable[..., Engine], llama: str
) -> None:
    engine = start()
    engine.generate([A])
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    for _ in range(3):
        engine.settle()
    client = engine.manager._client
    assert (client.total_blocks(), client.mempool_used()) == (0, 0)
    assert engine.generate([A]) == (want, [0])


@needs_positions
@pytest.mark.parametrize("store", [True, False])
def test_a_transfer_that_fails_stops_the_engine(
    start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, store: bool
) -> None:
    """It could not be reported, and to go on would give wrong tokens."""
    engine = start()
    if not store:
        engine.store([A])
    engine.fail_copies(monkeypatch)
    with pytest.raises(RadixError, match='use "kv_connector": "RadixShmemConnector"'):
        engine.store([A])


@needs_positions
def test_several_groups_are_refused(gemma: str, cache: RadixServer, region_name: str) -> None:
    with pytest.raises(ValueError, match=r"3 of them.*RadixShmemConnector"):
        Engine(gemma, transfer=_transfer(region_name))


def test_a_vllm_that_notes_no_positions_is_refused(
    region_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bare, "_POSITIONS", "what no version has")
    with pytest.raises(ValueError, match=r'RadixShmemConnector", or vLLM 0\.31 or later'):
        RadixShmemOffloadingSpec(contracts.offloading_config(region_name, bare=True))


@needs_positions
def test_the_path_grows_with_the_keys_and_skips_parts_of_blocks() -> None:
    context = ReqContext("r")
    path = bare.KeyPath(context, 32)
    hashes = [bytes([i]) * 32 for i in range(5)]
    assert len(path) == 0
    for position, end in enumerate([32, 64, 80, 96]):  # the third is a part of a block
        context.set_offload_key_position(make_offload_key(hashes[position], 0), end)
        assert len(path) == [1, 2, 2, 3][position]
    assert [path[i] for i in range(3)] == [hashes[0], hashes[1], hashes[3]]
