# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Real vLLM engines on the CPU, in this process, with tiny random models."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from mapped_files import mapped_files
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group

from radixshmem import RadixError
from radixshmem.integrations.vllm_offload.manager import RadixShmemManager
from radixshmem.integrations.vllm_offload.worker import RadixShmemWorker

CONFIG = Path(__file__).parents[3] / "configs" / "vllm_offload.json"  # what users copy

BLOCK = 32  # tokens; the smallest that vLLM takes on a CPU

Prompt = list[int]


def prompt(seed: int, length: int) -> Prompt:
    dice = random.Random(seed)
    return [dice.randrange(3, 500) for _ in range(length)]


def make_model(kind: str, folder: Path) -> str:
    """A tiny random checkpoint whose tokens vary, so that wrong KV bytes change them."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
    }
    if kind == "llama":
        llama = LlamaConfig(
            **shape, num_hidden_layers=4, initializer_range=0.15, tie_word_embeddings=False
        )
        model = LlamaForCausalLM(llama)
    else:
        gemma = Gemma3TextConfig(
            **shape,
            num_hidden_layers=6,
            sliding_window=2 * BLOCK,
            sliding_window_pattern=3,
            initializer_range=0.3,
            tie_word_embeddings=False,
            query_pre_attn_scalar=32,
        )
        model = Gemma3ForCausalLM(gemma)
    model.to(torch.float32).save_pretrained(folder, safe_serialization=True)
    return str(folder)


class Engine:
    """One vLLM engine; with `server`, one that offloads to it."""

    def __init__(
        self,
        model: str,
        server: str = "",
        *,
        blocks: int = 512,
        role: str = "kv_both",
        transfer: KVTransferConfig | None = None,
        **options: Any,
    ) -> None:
        """`transfer`: instead of offloading to `server`; `options` are those of vLLM's LLM."""
        if server and transfer is None:
            config = json.loads(CONFIG.read_text(encoding="utf-8"))
            config["kv_role"] = role
            config["kv_connector_extra_config"]["server_name"] = server
            transfer = KVTransferConfig(**config)
        usual: dict[str, Any] = {
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "max_model_len": 1024,
            "block_size": BLOCK,
            "enforce_eager": True,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 256,
            "distributed_executor_backend": "uni",
            "disable_log_stats": False,
            "seed": 0,
            "kv_cache_memory_bytes": 64 << 20,
            "num_gpu_blocks_override": blocks,
        }
        self.llm = LLM(model=model, kv_transfer_config=transfer, **(usual | options))

    def generate(
        self, prompts: Sequence[Prompt], count: int = 16
    ) -> tuple[list[list[int]], list[int]]:
        """The tokens that follow each prompt, and how many of its own came from a cache."""
        outputs = self.llm.generate(
            [{"prompt_token_ids": p} for p in prompts],
            SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False),
            use_tqdm=False,
        )
        return (
            [list(output.outputs[0].token_ids) for output in outputs],
            [output.num_cached_tokens for output in outputs],
        )

    def forget(self) -> None:
        """Empty vLLM's own prefix cache, not the shared one."""
        assert self.llm.reset_prefix_cache()

    def store(self, prompts: Sequence[Prompt]) -> None:
        """Have the blocks of the prompts in the shared cache, and not in vLLM's own."""
        self.generate(prompts)
        self.settle()
        self.forget()

    def assert_idle(self) -> None:
        """Nothing is pinned, being stored or remembered of a request that has ended."""
        self.settle()
        manager = self.manager
        assert manager.stores.empty
        assert manager.quarantine.empty
        assert [r for r in manager._requests.values() if r.found is not None or r.loads] == []
        assert manager._client.index._index.pins() == []

    def assert_clean(self) -> None:
        """Idle, and every slot in use holds a block of the index. Empties the shared cache."""
        self.assert_idle()
        assert len(self.manager._requests) <= 1  # vLLM tells the end of one with the next step
        client = self.manager._client
        assert client.mempool_used() == client.total_blocks()
        assert self.llm.reset_prefix_cache(reset_connector=True)
        assert client.mempool_used() == 0

    def assert_comes_back(self, prompts: Sequence[Prompt], want: list[list[int]]) -> None:
        """Of 100 tokens each, computed and then again, where not all find room at once."""
        assert self.generate(prompts, 100)[0] == want
        self.settle()
        assert self.generate(prompts, 100)[0] == want
        self.assert_idle()

    def fail_copies(self, patch: pytest.MonkeyPatch) -> None:
        """From now on."""

        def fail(*_: object) -> None:
            raise RadixError("made to fail by a test")

        patch.setattr(self.worker._copier, "start", fail)

    @property
    def connector(self) -> Any:
        """The scheduler's."""
        return _ours(self.llm.llm_engine.engine_core.engine_core.scheduler.connector)

    @property
    def manager(self) -> RadixShmemManager:
        manager = self.connector.connector_scheduler.manager
        assert isinstance(manager, RadixShmemManager)
        return manager

    @property
    def worker(self) -> RadixShmemWorker:
        worker = _ours(get_kv_transfer_group()).connector_worker.worker
        assert isinstance(worker, RadixShmemWorker)
        return worker

    def hashes(self, tokens: Prompt) -> list[bytes]:
        """The hashes of the whole blocks of a prompt, as vLLM computes them."""
        core = self.llm.llm_engine
        sampling = SamplingParams(max_tokens=1, detokenize=False)
        request = core.input_processor.process_inputs(
            "hashed", {"prompt_token_ids": tokens}, sampling, core.get_supported_tasks()
        )
        live, _ = core.engine_core.engine_core.preprocess_add_request(request)
        return list(live.block_hashes)

    def settle(self) -> None:
        """Run what is left over of the last requests: their stores, and telling of their end."""
        self.generate([[3, 4, 5]], 1)

    def close(self) -> None:
        ranks = [process.pid for process in multiprocessing.active_children() if process.pid]
        left = mapped_files(ranks, "vllm_dist_")  # by ranks that do not end quickly enough for vLLM
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()
        for file in left:
            Path(file).unlink(missing_ok=True)


def _ours(connector: Any) -> Any:
    """Of several connectors the one that is tested."""
    found = [
        c for c in getattr(connector, "_connectors", [connector]) if hasattr(c, "connector_worker")
    ]
    assert len(found) == 1
    return found[0]
