# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Equal tokens are not equal blocks when salt, adapter or image differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e.vllm_offload.engines import BLOCK, Engine, prompt
from safetensors.torch import save_file
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, make_offload_key
from vllm.v1.request import Request

from radixshmem.integrations.vllm_offload.manager import RadixShmemManager
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

A = prompt(1, 10 * BLOCK + 4)
ALL = 10 * BLOCK
_LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2, "max_cpu_loras": 2}


def _adapter(folder: Path, seed: int) -> str:
    """A random adapter of the tiny Llama, large enough to change its tokens."""
    dice = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(4):
        for name, size in (("q_proj", 128), ("v_proj", 64)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{at}.lora_A.weight"] = torch.randn(8, 128, generator=dice) * 0.3
            weights[f"{at}.lora_B.weight"] = torch.randn(size, 8, generator=dice) * 0.3
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
        "base_model_name_or_path": "llama",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest | None]:
    folder = tmp_path_factory.mktemp("adapters")
    made = [_adapter(folder / f"a{seed}", seed) for seed in (1, 2)]
    return [None, LoRARequest("first", 1, made[0]), LoRARequest("second", 2, made[1])]


def _ask(engine: Engine, lora: LoRARequest | None = None, **parts: Any) -> tuple[list[int], int]:
    """The tokens that follow A, and how many of its own came from a cache."""
    (output,) = engine.llm.generate(
        [{"prompt_token_ids": A, **parts}],
        SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False),
        use_tqdm=False,
        lora_request=lora,
    )
    return list(output.outputs[0].token_ids), output.num_cached_tokens


@pytest.fixture(scope="module")
def want(llama: str, adapters: list[LoRARequest | None]) -> list[list[int]]:
    """What follows A with each adapter, from an engine without connector."""
    engine = Engine(llama, **_LORA)
    tokens = [_ask(engine, adapter)[0] for adapter in adapters]
    engine.close()
    assert tokens[0] != tokens[1] != tokens[2] != tokens[0]
    return tokens


@pytest.fixture(scope="module")
def shared(llama: str, want: Any, module_region: str) -> Iterator[Engine]:
    with RadixServer(ServerConfig(module_region, data_bytes="16M")):
        engine = Engine(llama, module_region, **_LORA)
        yield engine
        engine.close()


@pytest.fixture
def engine(shared: Engine) -> Iterator[Engine]:
    yield shared
    shared.assert_clean()


def test_a_salt_shares_with_itself_only(engine: Engine, want: list[list[int]]) -> None:
    for salt in ("one", "two", None):
        parts = {"cache_salt": salt} if salt else {}
        assert _ask(engine, **parts) == (want[0], 0), salt
        engine.settle()
        engine.forget()
    assert engine.manager._client.total_blocks() == 30
    for salt in ("one", "two", None):
        parts = {"cache_salt": salt} if salt else {}
        assert _ask(engine, **parts) == (want[0], ALL), salt


def test_an_adapter_shares_with_itself_only(
    engine: Engine, want: list[list[int]], adapters: list[LoRARequest | None]
) -> None:
    for adapter, tokens in zip(adapters, want, strict=True):
        assert _ask(engine, adapter) == (tokens, 0)
        engine.settle()
        engine.forget()
    for adapter, tokens in zip(adapters, want, strict=True):
        assert _ask(engine, adapter) == (tokens, ALL)


# ------------------------------------------------------------ images, without a model that sees


Keys = Callable[..., list[OffloadKey]]


@pytest.fixture
def announce(engine: Engine) -> Iterator[Keys]:
    """Announces a request with images to the manager, and gives its keys."""
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    names: list[str] = []

    def of(name: str, *images: tuple[str, int], **parts: Any) -> list[OffloadKey]:
        features = [
            MultiModalFeatureSpec(None, "image", image, PlaceholderRange(at, BLOCK))
            for image, at in images
        ]
        request = Request(
            name,
            A,
            SamplingParams(max_tokens=1),
            None,
            mm_features=features,
            block_hasher=hasher,
            **parts,
        )
        engine.manager.offer(name, request.block_hashes)
        engine.manager.on_new_request(ReqContext(name))
        names.append(name)
        return [make_offload_key(block_hash, 0) for block_hash in request.block_hashes]

    yield of
    for name in names:
        engine.manager.on_request_finished(ReqContext(name))


def _store(manager: RadixShmemManager, name: str, keys: list[OffloadKey]) -> int:
    """How many of them were not there."""
    output = manager.prepare_store(keys, ReqContext(name))
    assert output is not None
    manager.complete_store(set(output.keys_to_store), ReqContext(name))
    return len(output.keys_to_store)


def _hits(manager: RadixShmemManager, name: str, keys: list[OffloadKey]) -> int:
    manager.begin_round(name, len(A))
    found = [manager.lookup(key, ReqContext(name)) == LookupResult.HIT for key in keys]
    return sum(found)


def test_an_image_shares_what_is_before_it_only(engine: Engine, announce: Keys) -> None:
    cat, dog = ("cat", 3 * BLOCK), ("dog", 3 * BLOCK)
    manager = engine.manager
    assert _store(manager, "a", announce("a", cat)) == 10
    assert _store(manager, "b", announce("b", cat)) == 0, "the same image"
    other = announce("c", dog)
    assert _hits(manager, "c", other) == 3
    assert _store(manager, "c", other) == 7
    assert _hits(manager, "d", announce("d")) == 3
    assert _hits(manager, "e", announce("e", cat, ("dog", 6 * BLOCK))) == 6
    assert _hits(manager, "f", announce("f", dog)) == 10
    salted = announce("g", cat, cache_salt="of somebody else")
    assert _hits(manager, "g", salted) == 0
