# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A process with a vLLM engine of a tiny random model in it, told by a pipe what to do.

python benchmarks/vllm_engine.py DESCRIPTOR MODEL SERVER
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tiny_llama import make_model

__all__ = ["BLOCK_TOKENS"]

BLOCK_TOKENS = 32  # the smallest that vLLM takes on a CPU
_NEW_TOKENS = 16


def main(descriptor: int, model: str, server: str) -> None:
    """Serve ("start",), ("generate", prompts) and ("forget",) until the pipe ends.

    Says "imported" once vLLM is there, and then answers each command.
    """
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine is in this process
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="WARNING",
    )
    pipe = Connection(descriptor)
    import vllm.v1.engine.llm_engine  # noqa: F401  # what takes the time, before the first command

    pipe.send("imported")
    engine: Any = None
    while True:
        try:
            what, *arguments = pipe.recv()
        except EOFError:
            return
        if what == "start":
            engine = _start(model, server)
            pipe.send(True)
        elif what == "forget":
            pipe.send(engine.reset_prefix_cache())
        else:
            pipe.send(_generate(engine, *arguments))


def _start(model: str, server: str) -> Any:
    from vllm import LLM
    from vllm.config import KVTransferConfig

    if not Path(model).exists():
        make_model(model)
    return LLM(
        model=model,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=2048,
        block_size=BLOCK_TOKENS,
        enforce_eager=True,
        max_num_seqs=4,
        distributed_executor_backend="uni",
        seed=0,
        kv_cache_memory_bytes=64 << 20,
        num_gpu_blocks_override=512,
        kv_transfer_config=KVTransferConfig(
            kv_connector="RadixShmemConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"server_name": server},
        ),
    )


def _generate(engine: Any, prompts: list[list[int]]) -> tuple[list[list[int]], list[int], float]:
    """Tokens that follow each prompt, how many of its own came from a cache, and seconds."""
    from vllm import SamplingParams

    def run(prompts: list[list[int]], count: int) -> Any:
        sampling = SamplingParams(
            temperature=0, max_tokens=count, ignore_eos=True, detokenize=False
        )
        return engine.generate([{"prompt_token_ids": p} for p in prompts], sampling, use_tqdm=False)

    begin = time.perf_counter()
    outputs = run(prompts, _NEW_TOKENS)
    seconds = time.perf_counter() - begin
    run([[3, 4, 5]], 1)  # the last blocks of a request are stored in the step after its end
    return (
        [list(output.outputs[0].token_ids) for output in outputs],
        [output.num_cached_tokens for output in outputs],
        seconds,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
