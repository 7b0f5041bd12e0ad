# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Records the calls of real engines into calls/*.jsonl: after a change of what vLLM calls.

Usage: PYTHONSAFEPATH=1 PYTHONPATH=tests \\
    build/vllm-0.32.0/bin/python -m e2e.vllm_offload.record_calls
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from e2e.vllm_offload.engines import BLOCK, Engine, make_model, prompt
from e2e.vllm_offload.recorded import Recorder, write
from vllm import SamplingParams

from radixshmem import RadixError
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer

CALLS = Path(__file__).parent / "calls"

A = prompt(1, 10 * BLOCK + 4)
FOUR = [prompt(20 + i, 200) for i in range(4)]


def main() -> None:
    name = f"/record-calls-{os.getpid()}"
    CALLS.mkdir(exist_ok=True)
    for kind in ("llama", "gemma3"):
        with (
            tempfile.TemporaryDirectory() as folder,
            RadixServer(ServerConfig(name, data_bytes="64M", swa_ratio=0.4)),
        ):
            model = make_model(kind, Path(folder))
            # Few GPU blocks, so that four long answers preempt each other.
            engine = Engine(model, name, blocks=34 if kind == "llama" else 60)
            with Recorder(engine.manager).recording() as recorder:
                record(engine, recorder)
            engine.close()
            write(CALLS / f"{kind}.jsonl", recorder.lines)


def record(engine: Engine, recorder: Recorder) -> None:
    recorder.scenario("cold")
    engine.generate([A])
    recorder.scenario("local hit")
    engine.generate([A])
    engine.forget()
    recorder.scenario("restored")
    engine.generate([A])
    engine.forget()
    recorder.scenario("local hit, then restored")
    engine.generate([A[: 4 * BLOCK + 2]], 1)
    engine.generate([A])
    recorder.scenario("turns")
    question = prompt(2, 100)
    [answer], _ = engine.generate([question], 70)
    engine.settle()
    engine.forget()
    engine.generate([question + answer + prompt(9, 9)])
    recorder.scenario("two with one prefix, cold and restored")
    shared = prompt(3, 6 * BLOCK)
    for _ in range(2):
        engine.generate([[*shared, 5, 6], [*shared, 8, 9]])
        engine.settle()
        engine.forget()
    recorder.scenario("a failed load, a failed store")
    failing(engine, lambda: engine.generate([A]))
    engine.forget()
    failing(engine, lambda: (engine.generate([prompt(4, 150)]), engine.settle()))
    recorder.scenario("aborted after each of some steps")
    core = engine.llm.llm_engine
    sampling = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True, detokenize=False)
    for steps in range(5):
        core.add_request(f"aborted-{steps}", {"prompt_token_ids": A}, sampling)
        for _ in range(steps):
            core.step()
        core.abort_request([f"aborted-{steps}"])
        engine.settle()
        engine.forget()
    recorder.scenario("preempted")
    for _ in range(2):
        engine.generate(FOUR, 100)
        engine.settle()
        engine.forget()
    recorder.scenario("reset")
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    engine.generate([A])
    engine.settle()
    engine.settle()


def failing(engine: Engine, run: Any) -> None:
    def fail(*_: object, **__: object) -> int:
        raise RadixError("made to fail for the record")

    engine.worker._copier.start = fail  # type: ignore[method-assign]
    run()
    del engine.worker._copier.start


if __name__ == "__main__":
    main()
