# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""SGLang's own radix cache in this process: what it stores, and what it asks for after a hit."""

from __future__ import annotations

import atexit
import json
from array import array
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from e2e.harness import eventually
from e2e.sglang_hicache.controllers import BY_NAME, DYNAMIC, NATIVE, keys_of, tokens, used
from e2e.sglang_hicache.pools import LAYERS, PAGE, parallel
from sglang.srt.environ import envs
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import reset_context
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from radixshmem_core.server import RadixServer

_DEVICE_PAGES = 64


class Tree:
    """One engine's cache, with HiCache and a storage as by its flags. No model runs."""

    def __init__(self, server: str, core: str, backend: str, memory: str) -> None:
        extra = {"server_name": server, "prefetch_threshold": PAGE}
        if backend == DYNAMIC:
            extra |= BY_NAME | {"hicache_storage_pass_prefix_keys": True}
        arguments = ServerArgs(
            model_path="none",
            device="cpu",
            page_size=PAGE,
            hicache_io_backend="kernel",
            hicache_mem_layout="page_first",
            hicache_host_memory_mode=memory,
            hicache_write_policy="write_through",
            hicache_storage_backend=backend,
            hicache_storage_backend_extra_config=json.dumps(extra),
            hicache_storage_prefetch_policy="wait_complete",
        )
        set_global_server_args_for_scheduler(arguments)
        self._buffer = memory == "buffer_only"
        size = _DEVICE_PAGES * PAGE
        pool = MHATokenToKVPool(
            size, PAGE, torch.float32, 2, 2, LAYERS, "cpu", enable_memory_saver=False
        )
        self._allocator = TokenToKVPoolAllocator(size, torch.float32, "cpu", pool, need_sort=False)
        requests = ReqToTokenPool(4, size, "cpu", enable_memory_saver=False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=requests,
            token_to_kv_pool_allocator=self._allocator,
            page_size=PAGE,
            tree_components=(ComponentType.FULL,),
        )
        with envs.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND.override(core):
            self.cache = UnifiedRadixCache(params=params)
        with parallel(), host_memory_budget_scope(1 << 28):
            self.cache.init_hicache(arguments, params)
        atexit.unregister(self.cache.shutdown)

    def compute(self, path: Sequence[int]) -> None:
        """As after a prefill of `path`: on the device, on the host, and in the storage."""
        rows = self._allocator.alloc(len(path))
        assert rows is not None, "the test's device pool is too small"
        self.cache.insert(InsertParams(key=_key(path), value=rows))
        eventually(self._stored, "everything is stored")

    def _stored(self) -> bool:
        self.cache.check_hicache_events()
        if self._buffer:
            pipeline = self.cache.buffer_pipeline
            return not (
                pipeline.pending_write_queue
                or pipeline.ongoing_write_through
                or pipeline.ongoing_backup
            )
        return not self.cache.ongoing_write_through and not self.cache.ongoing_backup

    def restored(self, path: Sequence[int], meanwhile: Sequence[int] = ()) -> tuple[int, int]:
        """Pages of `path` that the device has, and those that come from the storage after them.

        The steps of SGLang's scheduler for a request that waits; `meanwhile` is computed for
        another one.
        """
        match = self.cache.match_prefix(MatchPrefixParams(key=_key(path)))
        here, node = match.device_prefix_len, match.last_host_node
        if self._buffer:
            node = match.last_device_node
        assert self._buffer or self.cache.is_root(node) or self.cache.is_backuped(node)
        request = CacheRequestHandle(f"request-{len(path)}", 0)
        self.cache.prefetch_from_storage(
            request,
            node,
            array("q", path[here:]),
            self.cache.get_last_hash_value(node),
            self.cache.get_prefix_hash_values(node),
            matched_prefix_tokens=array("q", path[:here]),
        )
        if meanwhile:
            self.compute(meanwhile)

        def done() -> bool:
            self.cache.check_hicache_events()
            return bool(self.cache.check_prefetch_progress(request))

        eventually(done, "the prefetch has ended")
        loaded = self.cache.prefetch_loaded_tokens_by_reqid.get(request, 0)
        return here // PAGE, loaded // PAGE

    def close(self) -> None:
        self.cache.shutdown()


def _key(path: Sequence[int]) -> RadixKey:
    return RadixKey(array("q", path))


@pytest.fixture(params=["rust", "python"])
def start_tree(region_name: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Tree]]:
    """With either of SGLang's two implementations of its tree."""
    load_plugins()
    running: list[Tree] = []

    def start(backend: str = NATIVE, memory: str = "cache") -> Tree:
        running.append(Tree(region_name, request.param, backend, memory))
        kind = type(running[-1].cache.tree_core).__name__
        assert kind == {"rust": "RustUnifiedTreeCore", "python": "UnifiedTreeCore"}[request.param]
        return running[-1]

    yield start
    for tree in running:
        tree.close()
    reset_context()


@pytest.mark.parametrize(
    "options",
    [{"backend": NATIVE}, {"backend": DYNAMIC}, {"memory": "buffer_only"}],
    ids=["native", "dynamic", "buffer_only"],
)
def test_what_follows_a_hit_on_the_device_comes_from_the_storage(
    cache: RadixServer, start_tree: Callable[..., Tree], options: dict[str, str]
) -> None:
    path = tokens(12)
    one, other = (start_tree(**options) for _ in range(2))
    one.compute(path)
    other.compute(path[: 5 * PAGE])
    assert used(cache) == 12
    assert other.restored(path) == (5, 7)
    assert start_tree(**options).restored(path) == (0, 12)


def test_what_came_on_the_device_meanwhile_is_not_fetched_and_the_rest_is(
    cache: RadixServer, start_tree: Callable[..., Tree]
) -> None:
    path = tokens(12)
    one, other = (start_tree(memory="buffer_only") for _ in range(2))
    one.compute(path)
    other.compute(path[: 5 * PAGE])
    assert other.restored(path, meanwhile=path[: 9 * PAGE]) == (5, 3)


def test_what_follows_several_nodes_comes_from_the_storage(
    cache: RadixServer, start_tree: Callable[..., Tree], caplog: pytest.LogCaptureFixture
) -> None:
    path = tokens(20)
    one, other = start_tree(), start_tree()
    for pages in (3, 9, 14, 20):
        one.compute(path[: pages * PAGE])
    for pages in (4, 6, 11):
        other.compute(path[: pages * PAGE])
    assert used(cache) == 20
    assert other.restored(path) == (11, 9)
    assert "radixshmem:" not in caplog.text


def test_the_keys_before_a_lookup_are_all_of_them(
    cache: RadixServer, start_tree: Callable[..., Tree]
) -> None:
    tree = start_tree()
    path = tokens(9)
    for pages in (2, 5, 9):
        tree.compute(path[: pages * PAGE])
        match = tree.cache.match_prefix(MatchPrefixParams(key=_key(path)))
        told = tree.cache.get_prefix_hash_values(match.last_host_node)
        assert told == keys_of(path)[:pages]
