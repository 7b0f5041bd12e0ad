# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Delays and failures that SGLang itself injects into its storage; `page_first_direct`.

Host memory is a staging buffer only, as docs/integrations.md recommends.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.harness import eventually
from e2e.sglang_hicache.conftest import START_S, StartSGLang, make_node
from e2e.sglang_hicache.load import Load
from e2e.sglang_hicache.node import Node, prompt
from sglang_server import PAGE_TOKENS, SGLangServer, native_flags

ROUNDS = 8


@pytest.fixture(scope="module")
def own_node() -> Iterator[Node]:
    yield from make_node("injected")


@pytest.fixture(scope="module")
def injected(own_node: Node, start_sglang: StartSGLang) -> Iterator[SGLangServer]:
    own_node.start()
    server = start_sglang(
        *native_flags(own_node.name),
        *("--hicache-mem-layout", "page_first_direct"),
        *("--hicache-host-memory-mode", "buffer_only"),
        SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY="0.05",
        SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE="0.2",
    )
    yield server.wait(START_S)
    server.stop()


def test_delays_and_failures_change_no_token(own_node: Node, injected: SGLangServer) -> None:
    assert "failure_prob=0.2" in injected.log()
    prompts = [prompt(70 + i, 20) for i in range(5)]
    with Load(injected.client, prompts) as load:
        load.wait_rounds(ROUNDS)
        load.wait_restored()

    def whole() -> bool:
        injected.client.flush_cache()
        return injected.client.generate(prompts[0]).cached == {"storage": 20 * PAGE_TOKENS}

    eventually(whole, "a fetch without a failure restores all pages")
    assert injected.alive
    own_node.assert_idle()


def test_a_stopped_server_leaves_pages_and_nothing_else(
    own_node: Node, injected: SGLangServer
) -> None:
    """The last of these tests."""
    assert own_node.engines() == 1
    injected.stop()
    own_node.assert_idle()
    eventually(lambda: own_node.engines() == 0, "it has gone")
    assert own_node.client.total_blocks() >= 5 * 20
