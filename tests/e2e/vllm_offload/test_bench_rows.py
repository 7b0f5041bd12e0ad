# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The rows that `make bench` measures inside vLLM can be measured, whatever they say."""

from __future__ import annotations

from vllm_calls import call_rows
from vllm_restore import restore_rows


def test_calls_and_restores_are_measured() -> None:
    rows = [*call_rows(1), *restore_rows(1)]
    assert len(rows) == 6
    assert all(row.value is not None and row.value > 0 for row in rows)
