# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Inside vLLM's MultiConnector, beside a connector that keeps whole prompts in files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.vllm_offload.engines import BLOCK, Engine, prompt
from vllm.config import KVTransferConfig

from radixshmem.integrations.vllm_offload.metrics import PREFIX
from radixshmem_core.server import RadixServer

A = prompt(1, 7 * BLOCK + 4)  # one step: the other connector does not know prompts of several


@pytest.fixture
def want(llama: str, reference: Any) -> list[list[int]]:
    tokens: list[list[int]] = reference.tokens(llama, [A])
    return tokens


@pytest.fixture
def start(
    llama: str, cache: RadixServer, tmp_path: Path, start_engine: Callable[..., Engine]
) -> Callable[..., Engine]:
    ours = {
        "kv_connector": "RadixShmemConnector",
        "kv_connector_module_path": "radixshmem.integrations.vllm_offload",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"server_name": cache.config.name},
    }
    files = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }

    def start(*, ours_first: bool) -> Engine:
        transfer = KVTransferConfig(
            kv_connector="MultiConnector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={
                "connectors": [ours, files] if ours_first else [files, ours]
            },
        )
        return start_engine(llama, transfer=transfer)

    return start


def test_the_first_connector_restores_and_its_metrics_are_shown(
    want: list[list[int]], start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(ours_first=True)
    assert engine.generate([A]) == (want, [0])
    engine.settle()
    engine.forget()
    assert engine.generate([A]) == (want, [7 * BLOCK])
    engine.assert_idle()
    seen = {m.name: getattr(m, "value", None) for m in engine.llm.get_metrics()}
    assert seen[PREFIX + "stored_blocks"] == 7
    assert seen["vllm:kv_offload_load_bytes"] == 7 * 65536

    engine.fail_copies(monkeypatch)
    engine.forget()
    assert engine.generate([A])[0] == want, "a load that fails is computed"
    assert engine.manager.figures.failed_loads == 1


def test_another_connector_may_restore_what_is_found_here_too(
    want: list[list[int]], start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(ours_first=False)
    assert engine.generate([A]) == (want, [0])
    engine.settle()
    engine.forget()
    assert engine.manager._client.total_blocks() == 7, "all connectors store"
    engine.fail_copies(monkeypatch)
    assert engine.generate([A]) == (want, [7 * BLOCK])
    engine.assert_idle()
    engine.manager.note_failures((), ["loaded by the other connector"])
    assert engine.manager.figures.failed_loads == 0, "nothing was loaded from here"
