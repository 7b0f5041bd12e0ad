# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The rows that need vLLM, run by the Python of an environment that has it: adapter_rows.py.

python benchmarks/vllm_process.py ROUNDS    writes the rows as JSON to its standard output
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from adapter_rows import answer_rows
from rows import Row

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # engines in this process
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "OMP_NUM_THREADS": "1",
}


def _load() -> Callable[[int], list[Row]]:
    os.environ.update(_ENVIRONMENT)  # before vLLM is imported
    from vllm_calls import call_rows
    from vllm_restore import restore_rows
    from vllm_steps import engine_rows

    def measure(rounds: int) -> list[Row]:
        with tempfile.TemporaryDirectory(prefix="radix_bench_") as folder:
            return [*call_rows(rounds), *restore_rows(rounds), *engine_rows(5, Path(folder))]

    return measure


if __name__ == "__main__":
    answer_rows(_load)
