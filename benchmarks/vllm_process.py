# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The rows that need vLLM, run by the Python of an environment that has it; see vllm_rows.py.

python benchmarks/vllm_process.py ROUNDS    writes the rows as JSON to its standard output
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # engines in this process
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "OMP_NUM_THREADS": "1",
}


def main() -> int:
    rounds = int(sys.argv[1])
    os.environ.update(_ENVIRONMENT)  # before vLLM is imported
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what vLLM prints is no part of the answer
    from vllm_calls import call_rows
    from vllm_restore import restore_rows
    from vllm_steps import engine_rows

    gc.collect()
    gc.freeze()  # as vLLM does: what was imported is not searched for garbage again
    with tempfile.TemporaryDirectory(prefix="radix_bench_") as folder:
        rows = [*call_rows(rounds), *restore_rows(rounds), *engine_rows(5, Path(folder))]
    with answer:
        json.dump([asdict(row) for row in rows], answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
