# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The OpenAI server restores what another engine has stored, and shows it to operators."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from e2e.vllm_offload.engines import BLOCK, CONFIG, Engine, prompt
from e2e.vllm_offload.openai_server import OpenAIServer, make_tokenizer
from vllm.distributed.kv_events import BlockStored, KVEventBatch

from radixshmem.integrations.vllm_offload.metrics import PREFIX
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

A = prompt(1, 10 * BLOCK + 4)
_EVENT_S = 60.0


@pytest.fixture
def start_openai(region_name: str, llama: str, tmp_path: Path) -> Callable[..., OpenAIServer]:
    """The server with configs/vllm_offload.json; KV events go to `tmp_path`/events."""
    transfer = json.loads(CONFIG.read_text(encoding="utf-8"))
    transfer["kv_connector_extra_config"]["server_name"] = region_name
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{tmp_path}/events",
    }
    tokenizer = make_tokenizer(tmp_path / "tokenizer")

    files = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }
    multi = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [transfer, files]},
    }

    def start(number: int = 0, *, in_multi: bool = False) -> OpenAIServer:
        return OpenAIServer(
            *(tmp_path / f"server{number}.log", llama, "--tokenizer", tokenizer),
            *("--dtype", "float32", "--max-model-len", "1024", "--block-size", str(BLOCK)),
            *("--max-num-batched-tokens", "256", "--max-num-seqs", "4", "--enforce-eager"),
            *("--kv-cache-memory-bytes", str(64 << 20), "--enable-prompt-tokens-details"),
            *("--kv-transfer-config", json.dumps(multi if in_multi else transfer)),
            *("--kv-events-config", json.dumps(events)),
        )

    return start


@pytest.fixture
def telling(region_name: str) -> Any:
    config = ServerConfig(region_name, data_bytes="16M", kvevent_ring_capacity=1024)
    with RadixServer(config) as running:
        yield running


def test_a_completion_is_restored_and_shown_in_metrics_and_events(
    llama: str,
    reference: Any,
    telling: RadixServer,
    start_engine: Callable[..., Engine],
    start_openai: Callable[..., OpenAIServer],
    tmp_path: Path,
) -> None:
    want = reference.tokens(llama, [A])
    start_engine(llama).store([A])
    with start_openai() as server, zmq.Context() as context, context.socket(zmq.SUB) as router:
        router.connect(f"ipc://{tmp_path}/events")
        router.subscribe(b"")
        answer = server.complete(A)
        assert answer["choices"][0]["token_ids"] == want[0]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 10 * BLOCK
        assert _announced(router, 10) == 10

        answer = server.complete(prompt(2, 3 * BLOCK + 4))
        server.complete([3, 4, 5], 1)
        metrics = server.get("/metrics")
        assert _value(metrics, PREFIX + "stored_blocks_total") == 3
        assert _value(metrics, "vllm:kv_offload_load_bytes_total") == 10 * 65536
        assert _value(metrics, "vllm:external_prefix_cache_hits_total") == 10 * BLOCK


@pytest.mark.slow
def test_a_completion_is_restored_after_the_server_was_killed(
    llama: str,
    reference: Any,
    telling: RadixServer,
    start_openai: Callable[..., OpenAIServer],
) -> None:
    want = reference.tokens(llama, [A])
    with start_openai(0, in_multi=True) as server:
        assert server.complete(A)["choices"][0]["token_ids"] == want[0]
        server.complete([3, 4, 5], 1)
        assert _value(server.get("/metrics"), PREFIX + "stored_blocks_total") == 10
        server.kill()
    with start_openai(1) as server:
        answer = server.complete(A)
    assert answer["choices"][0]["token_ids"] == want[0]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 10 * BLOCK


def _announced(router: Any, blocks: int) -> int:
    """How many blocks of the shared cache were announced; waits until there are so many."""
    decoder = msgspec.msgpack.Decoder(KVEventBatch)
    seen: set[Any] = set()
    while len(seen) < blocks:
        assert router.poll(_EVENT_S * 1000), f"{len(seen)} blocks were announced, not {blocks}"
        for event in decoder.decode(router.recv_multipart()[-1]).events:
            if isinstance(event, BlockStored) and event.medium == "CPU":
                seen.update(event.block_hashes)
    return len(seen)


def _value(metrics: str, name: str) -> float:
    values = [float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name)]
    assert values, f"{name} is not shown"
    return sum(values)
