# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""SGLang's admin API: attach, detach and clear the storage of a running server; its metrics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.harness import eventually
from e2e.sglang_hicache.conftest import make_node
from e2e.sglang_hicache.node import BACK_S, Node, prompt
from sglang_server import PAGE_TOKENS, SGLangServer

from radixshmem import Geometry, RadixClient

A = prompt(51, 40)
POLICY = "wait_complete"


def extra(node: Node, **more: object) -> dict[str, object]:
    return {"server_name": node.name, "prefetch_threshold": PAGE_TOKENS, **more}


@pytest.fixture
def detached(node: Node, native: SGLangServer) -> Iterator[SGLangServer]:
    """It is attached again at the end."""
    native.client.detach()
    yield native
    if native.client.storage()["hicache_storage_backend"] is None:
        native.client.attach("radixshmem", extra(node), POLICY)


@pytest.fixture
def other_node() -> Iterator[Node]:
    yield from make_node("other")


def test_attach_detach_attach(node: Node, native: SGLangServer) -> None:
    client = native.client
    assert client.storage()["hicache_storage_backend"] == "radixshmem"
    cold = client.generate(A)
    node.wait_pages(40)
    engines = node.engines()
    client.detach()
    assert client.storage()["hicache_storage_backend"] is None
    assert node.engines() == engines - 1
    client.flush_cache()
    assert client.generate(A).cached == {}
    assert client.generate(A).cached == {"device": 40 * PAGE_TOKENS}

    client.attach("radixshmem", extra(node), POLICY)
    assert node.engines() == engines
    client.flush_cache()
    restored = client.generate(A)
    assert restored.cached == {"storage": 40 * PAGE_TOKENS}
    assert restored.agrees(cold)
    with pytest.raises(RuntimeError, match="Detach first"):
        client.attach("file", {}, POLICY)


def test_pages_of_before_the_attach_are_keyed_as_others(node: Node, detached: SGLangServer) -> None:
    """A device hit that was computed without a storage is continued from it."""
    client = detached.client
    computed = client.generate(A[: 20 * PAGE_TOKENS + 1])
    client.attach("radixshmem", extra(node), POLICY)
    assert computed.cached == {}
    cold = client.generate(A)
    assert cold.cached == {"device": 20 * PAGE_TOKENS}
    client.flush_cache()
    again = client.generate(A)
    assert again.agrees(cold)


def test_clear_drops_what_is_stored(node: Node, native: SGLangServer) -> None:
    client = native.client
    cold = client.generate(A)
    node.wait_pages(40)
    client.flush_cache()
    client.clear_storage()
    assert node.client.total_blocks() == 0
    again = client.generate(A)
    assert again.cached == {}
    assert again.agrees(cold)
    node.wait_pages(40)


def test_clear_without_a_server_is_told_in_the_log(node: Node, native: SGLangServer) -> None:
    """SGLang answers 200 to this in any case."""
    node.stop()
    said = len(native.log())
    native.client.clear_storage()
    eventually(lambda: "Failed to clear" in native.log()[said:], "the failure is told")
    # Whether the client has seen the end of the server's connection yet or not:
    told = native.log()[said:]
    assert f"the server of {node.name} has stopped" in told or "no radix-server answers" in told


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"server_name": ""}, "lacks 'server_name'"),
        ({"server_nam": "/kv"}, "unknown option 'server_nam'"),
        ({"pull_timeout_ms": "60"}, "pull_timeout_ms is '60'"),
    ],
)
def test_wrong_options_are_refused_by_name(
    node: Node, detached: SGLangServer, more: dict[str, object], words: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        detached.client.attach("radixshmem", extra(node, **more), POLICY)
    assert detached.client.generate(A).tokens


def test_a_server_of_other_pages_is_refused_with_both_sides(
    node: Node, detached: SGLangServer, other_node: Node
) -> None:
    other_node.start()
    geometry = Geometry(32, 4096, fingerprint="another model")
    with RadixClient(other_node.name, geometry) as owner:
        owner.wait_ready(BACK_S)
        with pytest.raises(RuntimeError, match="another model"):
            detached.client.attach("radixshmem", extra(other_node), POLICY)
    other_node.stop()
    detached.client.attach("radixshmem", extra(node), POLICY)
    cold = detached.client.generate(A)
    node.wait_pages(40)
    detached.client.flush_cache()
    assert detached.client.generate(A).agrees(cold)


def test_engines_of_another_revision_are_refused(node: Node, detached: SGLangServer) -> None:
    with pytest.raises(RuntimeError, match="later"):
        detached.client.attach("radixshmem", extra(node, revision="later"), POLICY)


def test_metrics_tell_what_was_stored_and_fetched(node: Node, native: SGLangServer) -> None:
    value = native.client.metric
    stored, fetched = value("backuped_tokens_total"), value("prefetched_tokens_total")
    pages = value("prefetch_pgs_count")
    native.client.generate(A)
    node.wait_pages(40)
    native.client.flush_cache()
    native.client.generate(A)
    native.client.generate(prompt(52, 1))  # SGLang counts in the steps of its scheduler

    def counted() -> bool:
        return (
            value("backuped_tokens_total") - stored >= 40 * PAGE_TOKENS
            and value("prefetched_tokens_total") - fetched == 40 * PAGE_TOKENS
            and value("prefetch_pgs_count") > pages
        )

    eventually(counted, "what was stored and fetched is counted")
