# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What an operator reads when an engine starts."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from e2e.vllm_offload.contracts import FULL, IDENTITY_KEY, offloading_config
from e2e.vllm_offload.contracts import kv_caches as caches_of
from e2e.vllm_offload.engines import BLOCK

from radixshmem import GeometryMismatch, ServerNotReady
from radixshmem.integrations.vllm_offload import RadixShmemOffloadingSpec
from radixshmem.integrations.vllm_offload.log import share_handlers
from radixshmem.integrations.vllm_offload.settings import LONGEST_KEY
from radixshmem_core.server import RadixServer


def _spec(server: str, **extra: Any) -> RadixShmemOffloadingSpec:
    return RadixShmemOffloadingSpec(offloading_config(server, (FULL,), extra=extra))


def _loggers(**ours: Any) -> tuple[logging.Logger, logging.Logger]:
    """Ours, and vLLM's with a handler."""
    theirs = logging.Logger("vllm", logging.INFO)
    theirs.addHandler(logging.NullHandler())
    return logging.Logger("radixshmem", **ours), theirs


def test_messages_go_where_those_of_vllm_go() -> None:
    ours, theirs = _loggers()
    for _ in range(2):
        share_handlers(ours, theirs)
        assert (ours.handlers, ours.level) == (theirs.handlers, logging.INFO)


def test_a_program_that_says_where_messages_go_is_obeyed() -> None:
    ours, theirs = _loggers(level=logging.ERROR)
    share_handlers(ours, theirs)
    assert (ours.handlers, ours.level) == ([], logging.ERROR)
    ours, theirs = _loggers()
    own = logging.NullHandler()
    ours.addHandler(own)
    share_handlers(ours, theirs)
    assert (ours.handlers, ours.level) == ([own], logging.NOTSET)


@pytest.mark.parametrize("longest", [BLOCK, 1 << 30])
def test_the_size_of_the_cache_is_told_and_whether_it_is_too_small(
    cache: RadixServer, region_name: str, caplog: pytest.LogCaptureFixture, longest: int
) -> None:
    worker = _spec(region_name).get_worker(caches_of([[4096]]))
    with caplog.at_level(logging.INFO, logger="radixshmem"):
        manager = _spec(region_name, **{LONGEST_KEY: longest}).get_manager()
    held = manager._client.mempool_total()
    assert f"{region_name} holds {held} blocks of {BLOCK} tokens, 0 are in use" in caplog.text
    small = f"{held * BLOCK} tokens in all, and one request may have {longest}"
    assert (small in caplog.text) == (longest == 1 << 30)
    manager.shutdown()
    worker.shutdown()


def test_an_engine_that_waits_for_its_server_says_so_once(
    region_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ServerNotReady):
        _spec(region_name, wait_server_s=0.5).get_worker(caches_of([[64]]))
    assert (
        caplog.text.count(f"waits 0.5 s for it: no radix-server answers at /dev/shm{region_name}")
        == 1
    )


def test_a_worker_names_what_its_model_differs_in(cache: RadixServer, region_name: str) -> None:
    worker = _spec(region_name).get_worker(caches_of([[64]]))
    other = _spec(region_name, **{IDENTITY_KEY: {"model": "other"}})
    with pytest.raises(GeometryMismatch, match=r"(?s)disagree on \['model'\].*tiny.*other"):
        other.get_worker(caches_of([[64]]))
    worker.shutdown()
