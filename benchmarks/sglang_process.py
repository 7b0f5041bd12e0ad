# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The rows that need SGLang, run by the Python of an environment that has it: adapter_rows.py.

python benchmarks/sglang_process.py ROUNDS    writes the rows as JSON to its standard output
"""

from __future__ import annotations

from collections.abc import Callable

import workload
from adapter_rows import answer_rows
from index_rows import sglang_tree_rows
from rows import Row


def _load() -> Callable[[int], list[Row]]:
    from sglang_lookups import lookup_rows
    from sglang_pages import page_rows

    return lambda rounds: [
        *lookup_rows(rounds),
        *page_rows(rounds),
        *sglang_tree_rows(workload.make(), rounds),
    ]


if __name__ == "__main__":
    answer_rows(_load)
