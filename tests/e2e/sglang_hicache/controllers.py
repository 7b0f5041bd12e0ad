# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""SGLang's real controller in this process, without a model: nodes go to storage and come back."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from e2e.harness import DEADLINE_S
from e2e.sglang_hicache import rank_pages
from e2e.sglang_hicache.pools import PAGE, Sidecar, blank, fill, holds, host_group, parallel
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageExtraInfo,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.plugins import load_plugins

from radixshmem import RadixClient, fold_page_keys
from radixshmem_core.server import RadixServer

NATIVE = "radixshmem"
DYNAMIC = "dynamic"
BY_NAME = {
    "backend_name": "radixshmem",
    "module_path": "radixshmem.integrations.sglang_hicache",
    "class_name": "RadixShmemStorage",
    "interface_v1": 1,
}
_MODEL = "tiny"
_requests = itertools.count()


def tokens(pages: int, seed: int = 0) -> list[int]:
    """A path of its own for each seed; a longer one of the same seed continues a shorter one."""
    noise = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(0, 1 << 20, (pages * PAGE,), generator=noise).tolist()
    return found


def keys_of(path: Sequence[int]) -> list[str]:
    keys: list[str] = get_storage_hash_str(list(path), None, page_size=PAGE)
    return keys


@dataclasses.dataclass
class Fetched:
    hit_pages: int
    """What the query said, for all pools together."""
    kv_pages: int
    """How many pages came, and held what was stored."""
    pools: dict[PoolName, int]
    """How many entries of each trailing pool came, and held what was stored."""


class Rank:
    """One rank's controller, its host pools and the storage that it made."""

    def __init__(
        self,
        group: Any,
        backend: str,
        extra: dict[str, Any],
        *,
        sidecars: Sequence[Sidecar] = (),
        tp: tuple[int, int] = (0, 1),
        pp: tuple[int, int] = (0, 1),
        attach: bool = True,
    ) -> None:
        self.group = group
        self.guard = threading.Lock()
        """Of the host pools, for tests with threads."""
        self.sidecars = tuple(sidecars)
        self._tp = tp
        self._pp = pp
        device = group.anchor_entry.device_pool
        self.controller = HybridCacheController(
            SimpleNamespace(get_kvcache=lambda: device),
            group,
            PAGE,
            None,
            threading.Event(),
            io_backend="direct",
            prefetch_threshold=PAGE,
            model_name=_MODEL,
            write_policy="write_through",
        )
        if attach:
            try:
                self.attach(backend, extra)
            except BaseException:
                self.close()
                raise

    def attach(self, backend: str, extra: dict[str, Any]) -> None:
        with parallel(self._tp, self._pp):
            self.controller.attach_storage_backend(
                backend,
                prefetch_threshold=PAGE,
                model_name=_MODEL,
                storage_backend_extra_config=dict(extra),
                host_pools=self.group.entries,
            )

    @property
    def storage(self) -> Any:
        return self.controller.storage_backend

    @property
    def content(self) -> int:
        """Who wrote the pages of KV that this rank reads."""
        replicated = self.controller.storage_config.is_mla_model
        return 0 if replicated else self._tp[0] + 1000 * self._pp[0]

    def close(self) -> None:
        self.controller.detach_storage_backend()

    def store(
        self,
        path: Sequence[int],
        start: int = 0,
        *,
        trailing: dict[PoolName, int] | None = None,
        prefix: bool = True,
    ) -> int:
        """A node from page `start` to the end: how many of its pages were stored.

        `trailing` says how many pages of each trailing pool the node has; without it, as many as
        fit into the pool's window.
        """
        keys = keys_of(path)
        own = keys[start:]
        host = self.taken(PoolName.KV, own)
        for sidecar in self.sidecars:
            if sidecar.indices_from == PoolName.KV:
                self._write(sidecar.name, own, host)
        transfers = [self._stored_sidecar(each, own, trailing) for each in self.sidecars]
        transfers = [transfer for transfer in transfers if transfer is not None]
        self.controller.write_storage(
            host,
            list(path[start * PAGE :]),
            hash_value=own,
            prefix_keys=keys[:start] if prefix else None,
            extra_pools=transfers or None,
        )
        operation = self.controller.ack_backup_queue.get(timeout=DEADLINE_S)
        self.group.free(host)
        self.group.release_transfers(transfers)
        done: int = operation.completed_tokens
        return done // PAGE

    def store_apart(self, path: Sequence[int], start: int = 0) -> None:
        """The same as SGLang stores it with `buffer_only`: KV alone, then each trailing pool alone.

        It tells the keys before those of SWA, but before a Mamba state those of the parent alone.
        """
        keys = keys_of(path)
        own = keys[start:]
        self._write_storage(path, own, self.taken(PoolName.KV, own), keys[:start], None)
        for sidecar in self.sidecars:
            transfer = self._stored_sidecar(sidecar, own, None)
            assert transfer is not None
            assert transfer.keys is not None
            known = start if sidecar.name == PoolName.MAMBA else len(keys) - len(transfer.keys)
            self._write_storage(path, [], torch.empty(0, dtype=torch.int64), keys[:known], transfer)

    def _write_storage(
        self,
        path: Sequence[int],
        own: list[str],
        host: torch.Tensor,
        prefix: list[str],
        transfer: PoolTransfer | None,
    ) -> None:
        transfers = [transfer] if transfer else None
        self.controller.write_storage(
            host, list(path), hash_value=own, prefix_keys=prefix, extra_pools=transfers
        )
        self.controller.ack_backup_queue.get(timeout=DEADLINE_S)
        self.group.free(host)
        self.group.release_transfers(transfers)

    def taken(self, name: PoolName, keys: Sequence[str]) -> torch.Tensor:
        """Host pages that hold what belongs to `keys`."""
        pool = self.group.get_pool(name)
        indices: torch.Tensor = pool.alloc(len(keys) * pool.page_size)
        assert indices is not None, f"the test's host pool of {name} is too small"
        self._write(name, keys, indices)
        return indices

    def _write(self, name: PoolName, keys: Sequence[str], indices: torch.Tensor) -> None:
        pool = self.group.get_pool(name)
        for key, index in zip(keys, indices[:: pool.page_size].tolist(), strict=True):
            fill(pool, index, key, self.content)

    def _stored_sidecar(
        self, sidecar: Sidecar, keys: list[str], trailing: dict[PoolName, int] | None
    ) -> PoolTransfer | None:
        if sidecar.indices_from == PoolName.KV:
            return PoolTransfer(
                sidecar.name, hit_policy=sidecar.policy, indices_from_pool=PoolName.KV
            )
        count = min(sidecar.window_pages, len(keys))
        if trailing is not None:
            count = trailing.get(sidecar.name, 0)
        if not count:
            return None
        own = keys[-count:]
        return PoolTransfer(
            sidecar.name,
            host_indices=self.taken(sidecar.name, own),
            keys=own,
            hit_policy=sidecar.policy,
        )

    def query(self, path: Sequence[int], start: int = 0, *, prefix: bool = True) -> Any:
        """SGLang's operation after its query: what it would fetch from page `start` on."""
        keys = keys_of(path)
        transfers = [
            PoolTransfer(
                sidecar.name,
                keys=["__placeholder__"] * sidecar.window_pages or None,
                hit_policy=sidecar.policy,
                indices_from_pool=sidecar.indices_from,
            )
            for sidecar in self.sidecars
        ]
        self.controller.prefetch(
            CacheRequestHandle(f"request-{next(_requests)}", 0),
            list(path[start * PAGE :]),
            last_hash=keys[start - 1] if start else None,
            prefix_keys=keys[:start] if prefix else None,
            extra_pools=transfers or None,
        )
        return self.controller.prefetch_hit_queue.get(timeout=DEADLINE_S)

    def fetch(self, path: Sequence[int], start: int = 0, *, prefix: bool = True) -> Fetched:
        """What SGLang restores from page `start` on, after its query."""
        operation = self.query(path, start, prefix=prefix)
        hit_pages = operation.storage_hit_count // PAGE
        if hit_pages == 0:
            return Fetched(0, 0, {})
        return self.transfer(operation)

    def transfer(self, operation: Any) -> Fetched:
        """The second half of fetch()."""
        hit_pages = operation.storage_hit_count // PAGE
        host = self._blank(PoolName.KV, hit_pages)
        operation.host_indices = host
        for transfer in operation.pool_transfers or ():
            if transfer.indices_from_pool is None:
                count = min(len(transfer.keys), hit_pages)
                transfer.host_indices = self._blank(transfer.name, count)
            elif transfer.indices_from_pool == PoolName.KV:
                blank(self.group.get_pool(transfer.name), host)
        self.controller.prefetch_buffer.put(operation)
        came, hits = self._acknowledged()
        found = Fetched(hit_pages, self._checked(PoolName.KV, operation.hash_value, host, came), {})
        for transfer in operation.pool_transfers or ():
            if transfer.indices_from_pool == PoolName.KV:
                self._checked(transfer.name, operation.hash_value, host, came)
                continue
            count = hits.get(transfer.name, 0)
            found.pools[transfer.name] = self._checked(
                transfer.name, transfer.keys, transfer.host_indices, count
            )
        self.group.free(host)
        self.group.release_transfers(operation.pool_transfers)
        return found

    def _blank(self, name: PoolName, count: int) -> torch.Tensor:
        pool = self.group.get_pool(name)
        indices: torch.Tensor = pool.alloc(count * pool.page_size)
        assert indices is not None, f"the test's host pool of {name} is too small"
        blank(pool, indices)
        return indices

    def _acknowledged(self) -> tuple[int, dict[str, int]]:
        pages, hits = 0, {}
        while True:
            ack = self.controller.ack_prefetch_queue.get(timeout=DEADLINE_S)
            if ack.completed_tokens is not None:
                pages = ack.completed_tokens // PAGE
            if ack.pool_hits is not None:
                hits = ack.pool_hits
            if ack.completed_req:
                return pages, hits

    def _checked(self, name: PoolName, keys: Sequence[str], host: torch.Tensor, count: int) -> int:
        """`count`, when that many pages are what was stored."""
        pool = self.group.get_pool(name)
        indices = host[:: pool.page_size].tolist()
        for key, index in list(zip(keys, indices, strict=False))[:count]:
            assert holds(pool, index, key, self.content), f"{name}: a wrong page of {key}"
        return count


def start(
    server: str,
    *sidecars: Sidecar,
    backend: str = NATIVE,
    layout: str = "page_first",
    kind: str = "mha",
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> Rank:
    """A rank whose storage is radixshmem's, under the flag's name or under its class."""
    load_plugins()
    config = {"server_name": server} | (BY_NAME if backend == DYNAMIC else {}) | (extra or {})
    group = host_group(*sidecars, layout=layout, kind=kind)
    return Rank(group, backend, config, sidecars=sidecars, **options)


def used(cache: RadixServer) -> int:
    with RadixClient(cache.config.name) as client:
        return client.mempool_used()


def total(cache: RadixServer) -> int:
    """Slots for KV; a client has configured the server."""
    with RadixClient(cache.config.name) as client:
        return client.mempool_total()


def waiting(rank: Rank) -> int:
    """Slots, or windows, that are not in the index yet."""
    return len(rank.storage._attachment.attached.held)


def damage(cache: RadixServer, path: Sequence[int], page: int) -> None:
    """This page of the KV, of the rank whose keys have no salt."""
    with RadixClient(cache.config.name) as client:
        rank_pages.damage(client, fold_page_keys(keys_of(path)), page)


def store_sidecar(rank: Rank, sidecar: Sidecar, path: Sequence[int], last: int = 0) -> int:
    """How many pages of a sidecar were taken, all or the last ones; their KV does not follow."""
    keys = keys_of(path)
    own = keys[-last:]
    host = rank.taken(sidecar.name, own)
    try:
        transfer = PoolTransfer(sidecar.name, host_indices=host, keys=own)
        extra = HiCacheStorageExtraInfo(prefix_keys=keys[: len(keys) - len(own)])
        (taken,) = rank.storage.batch_set_v2([transfer], extra).values()
        return sum(taken)
    finally:
        rank.group.get_pool(sidecar.name).free(host)
