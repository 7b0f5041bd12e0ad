# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Rows of whole vLLM engines on the CPU, in this process, with a tiny random Llama."""

from __future__ import annotations

import inspect
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rows import Row, Samples, bounded, time_text
from server_process import own_name, radix_server
from tiny_llama import make_model
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import TransferResult
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm_engine import BLOCK_TOKENS

__all__ = ["IdleSpec", "engine_rows"]

_LONGEST = 4352  # tokens of a request
_CACHED = 4096  # tokens of a prompt that can come from a cache
_STEPS = 2000
_WARM_UP = 20
_OURS, _THEIRS = "radixshmem", "OffloadingConnector"


class _IdleWorker(base.OffloadingWorker):
    """Moves nothing: vLLM's own worker wants a GPU, and these steps have nothing to move."""

    def __init__(self) -> None:
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self._done.append(TransferResult(job_id, True, 0, 0.0))
        return True

    submit_load = submit_store

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        pass


class IdleSpec(base.OffloadingSpec):
    """vLLM's own connector and manager for host memory, without its copies."""

    def get_manager(self) -> CPUOffloadingManager:
        return CPUOffloadingManager(512)

    def get_worker(self, kv_caches: Any) -> _IdleWorker:
        return _IdleWorker()


class _Engine:
    """An engine whose connector is put in place for each of its steps."""

    def __init__(self, model: str, connector: str, **extra: Any) -> None:
        kv_transfer_state._KV_CONNECTOR_AGENT = None
        transfer = KVTransferConfig(
            kv_connector=connector, kv_role="kv_both", kv_connector_extra_config=extra
        )
        self.llm = LLM(
            model=model,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=_LONGEST,
            block_size=BLOCK_TOKENS,
            enforce_eager=True,
            max_num_seqs=4,
            max_num_batched_tokens=_LONGEST,
            distributed_executor_backend="uni",
            seed=0,
            kv_cache_memory_bytes=64 << 20,
            num_gpu_blocks_override=512,
            kv_transfer_config=transfer,
        )
        self._agent: Any = kv_transfer_state._KV_CONNECTOR_AGENT
        core = self.llm.llm_engine.engine_core.engine_core
        self.hooks = _HookTimer(core.scheduler.connector, self._agent)

    def begin(self, prompt: list[int], tokens: int) -> None:
        self.llm.llm_engine.add_request("steps", {"prompt_token_ids": prompt}, _sampling(tokens))

    def step(self) -> None:
        kv_transfer_state._KV_CONNECTOR_AGENT = self._agent
        self.llm.llm_engine.step()

    def first_token(self, prompt: list[int]) -> tuple[float, int]:
        """Seconds, and how many tokens came from a cache."""
        kv_transfer_state._KV_CONNECTOR_AGENT = self._agent
        begin = time.perf_counter()
        (output,) = self.llm.generate([{"prompt_token_ids": prompt}], _sampling(1), use_tqdm=False)
        return time.perf_counter() - begin, output.num_cached_tokens

    def close(self) -> None:
        kv_transfer_state._KV_CONNECTOR_AGENT = self._agent
        self.llm.llm_engine.engine_core.shutdown()


class _HookTimer:
    """Adds up the time that an engine spends in the methods of its connectors."""

    def __init__(self, *connectors: Any) -> None:
        self.seconds = 0.0
        self._inside = False
        for connector in connectors:
            for name, _ in inspect.getmembers(type(connector), inspect.isfunction):
                if not name.startswith("_"):
                    setattr(connector, name, self._timed(getattr(connector, name)))

    def _timed(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            if self._inside:
                return hook(*args, **options)
            self._inside = True
            begin = time.perf_counter()
            try:
                return hook(*args, **options)
            finally:
                self.seconds += time.perf_counter() - begin
                self._inside = False

        return timed


def _sampling(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)


def _prompt(seed: int, length: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(3, 500) for _ in range(length)]


def engine_rows(rounds: int, folder: Path) -> list[Row]:
    """Steps beside those of vLLM's own connector, and the time to the first token."""
    model = str(folder / "llama")
    make_model(model)
    name = own_name("bench_vllm")
    with radix_server(name, "--data-bytes", "64M"):
        # Only prompts are offloaded, so a step that generates a token has nothing to offload.
        ours = _Engine(model, "RadixShmemConnector", server_name=name, offload_prompt_only=True)
        theirs = _Engine(
            model,
            "OffloadingConnector",
            spec_name="IdleSpec",
            spec_module_path="vllm_steps",
            offload_prompt_only=True,
        )
        try:
            return [_step_row(ours, theirs), *_first_token_rows(ours, rounds)]
        finally:
            theirs.close()
            ours.close()


def _step_row(ours: _Engine, theirs: _Engine) -> Row:
    prompt = _prompt(0, 300)
    engines = {_OURS: ours, _THEIRS: theirs}
    for engine in engines.values():
        engine.begin(prompt, _STEPS + _WARM_UP)
        for _ in range(_WARM_UP // 2):
            engine.step()
    hooks: Samples = {name: [] for name in engines}
    for _ in range(_STEPS):
        for name, engine in engines.items():
            before = engine.hooks.seconds
            engine.step()
            hooks[name].append(engine.hooks.seconds - before)
    for engine in engines.values():
        while engine.llm.llm_engine.has_unfinished_requests():
            engine.step()
    more = [a - b for a, b in zip(hooks[_OURS], hooks[_THEIRS], strict=True)]
    return Row(
        figure="vLLM: the connector in a step with nothing to offload, more than vLLM's own",
        measured=f"{_OURS}: {time_text(statistics.median(hooks[_OURS]))}",
        reference=f"{_THEIRS}: {time_text(statistics.median(hooks[_THEIRS]))}",
        value=statistics.median(more) * 1e6,
        bound=20.0,
        unit="us",
        note=f"median of {_STEPS} steps",
    )


def _first_token_rows(engine: _Engine, rounds: int) -> list[Row]:
    """A prompt that is computed, restored, and found in vLLM's own cache."""
    samples: Samples = {"computed": [], "restored": [], "vLLM's own hit": []}
    for seed in range(rounds + 1):
        prompt = _prompt(1 + seed, _CACHED + 4)
        computed = engine.first_token(prompt)
        engine.first_token(prompt[:3])  # runs the stores of the prompt
        if not engine.llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not empty its own cache")
        restored = engine.first_token(prompt)
        own = engine.first_token(prompt)
        cached = [computed[1], restored[1], own[1]]
        if cached != [0, _CACHED, _CACHED]:
            raise RuntimeError(f"tokens from a cache: {cached}")
        if seed:
            for name, (seconds, _) in zip(samples, (computed, restored, own), strict=True):
                samples[name].append(seconds)
    figure = f"vLLM: first token of {_CACHED:,} tokens, restored"
    return [
        bounded(f"{figure}, against computed", samples, "restored", "computed", None),
        bounded(f"{figure}, against vLLM's own hit", samples, "restored", "vLLM's own hit", None),
    ]
