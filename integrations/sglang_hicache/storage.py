# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`RadixShmemStorage`: SGLang's third level of HiCache, in the shared memory of the node.

SGLang calls from several threads: it asks what is there, fetches pages into its host pools, and
stores pages from them. Once attached nothing raises: a server that is not there is a miss.
"""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)
from sglang.srt.observability.metrics_collector import StorageMetrics

from radixshmem import RadixClient, RadixError, ServerNotReady

from .attached import Attached
from .attachment import Attachment
from .engine import prepare_keys
from .identity import rank_salt
from .lookup import Lookup
from .metrics import Meter
from .options import Settings
from .pages import Batch, Keys
from .paths import Paths

__all__ = ["RadixShmemStorage"]

_log = logging.getLogger("radixshmem.sglang")
_QUIET_S = 30.0  # the same trouble is told once in this time
_NO_PREFIX = (
    "SGLang does not tell what comes before the pages that it stores, so of a sequence only the "
    'first ones are found again: add "hicache_storage_pass_prefix_keys": true to '
    "--hicache-storage-backend-extra-config"
)
_NO_ROOM = (
    "last pages of a prefix were not stored, for which their pool has too few slots, or none free: "
    "if this comes often, start the radix-server with a larger"
)
_T = TypeVar("_T")


class RadixShmemStorage(HiCacheStorage):  # type: ignore[misc]  # SGLang has no types
    """Made by SGLang for each rank; see docs/integrations.md."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: object = None) -> None:
        """ValueError for wrong options, or an SGLang that is too old; RuntimeError where SGLang has
        no compiler.

        `kwargs` is given to a backend that was made by name.
        """
        self._settings = Settings.of(storage_config.extra_config)
        prepare_keys()
        self._paths = Paths(rank_salt(storage_config))
        self._meter = Meter()
        self._attachment = Attachment(storage_config, self._settings)
        self._told: dict[str, float] = {}

    # ------------------------------------------------------------ life

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._attachment.register("kv", mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: PoolName | str) -> None:
        name = getattr(host_pool_name, "value", str(host_pool_name))
        self._attachment.register(name, host_pool)

    def on_host_pools_registered(self) -> None:
        """ValueError, GeometryMismatch: SGLang then does not attach. Not called before 0.5.23."""
        self._attachment.all_registered()

    def close(self) -> None:
        """Give all pins and slots back, and end the client. Idempotent."""
        self._attachment.close()

    def clear(self) -> None:
        """Drop the trees of all nodes of this fingerprint. RadixError, TimeoutError: not of all."""
        attached = self._attachment.at_batch()
        client = attached.connection.client if attached is not None else None
        if attached is None or client is None:
            raise RadixError(
                f"{self._settings.server_name} is not attached, so nothing was cleared: see the "
                "warnings above, start its radix-server, and clear again"
            )
        with contextlib.suppress(ServerNotReady):
            client.mempool_total()  # told once to each thread when a server was replaced
        attached.clear(client)

    def get_stats(self) -> StorageMetrics:
        return self._meter.take()

    # ------------------------------------------------------------ what is there

    def batch_exists(
        self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> int:
        """How many of the leading pages are there, on this node or on peers."""

        def ask(_: Attached, client: RadixClient) -> int:
            return self._lookup(client, keys, extra_info).hit()

        return self._attempt(0, ask)

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """Which numbers of leading pages can be restored, with what each pool needs for them."""

        def ask(attached: Attached, client: RadixClient) -> PoolTransferResult:
            lookup = self._lookup(client, keys, extra_info)
            return lookup.restorable(attached, pool_transfers or [], self._tell)

        return self._attempt(PoolTransferResult.empty(), ask)

    def _lookup(
        self, client: RadixClient, keys: Sequence[str], extra_info: HiCacheStorageExtraInfo | None
    ) -> Lookup:
        path, first = self._paths.asked(keys, extra_info)
        return Lookup(client, path, first, self._settings.pull_timeout_ms == 0)

    # ------------------------------------------------------------ pages

    def batch_get_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        return self._get("kv", keys, host_indices, extra_info)

    def batch_set_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        return self._set("kv", keys, host_indices, extra_info)

    def batch_get_v2(
        self,
        transfers: list[PoolTransfer],
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> dict[str, list[bool]]:
        return {
            transfer.name: self._get(
                transfer.name, transfer.keys or [], transfer.host_indices, extra_info
            )
            for transfer in transfers
        }

    def batch_set_v2(
        self,
        transfers: list[PoolTransfer],
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> dict[str, list[bool]]:
        return {
            transfer.name: self._set(
                transfer.name, transfer.keys or [], transfer.host_indices, extra_info
            )
            for transfer in transfers
        }

    def _get(
        self,
        pool: str,
        keys: Sequence[str],
        host_indices: torch.Tensor | None,
        extra_info: HiCacheStorageExtraInfo | None,
    ) -> list[bool]:
        def fetch(attached: Attached, client: RadixClient) -> list[bool]:
            begin = time.perf_counter()
            batch, path, first = self._batch(attached, pool, keys, host_indices, extra_info)
            trailing = attached.trailing.get(batch.part.name)
            pages = attached.full if trailing is None else trailing
            ok = pages.read(client, path, first, batch, self._settings.pull_timeout_ms)
            self._meter.fetched(int(ok.sum()), batch.part, time.perf_counter() - begin)
            return list(ok.tolist())

        return self._attempt([False] * len(keys), fetch)

    def _set(
        self,
        pool: str,
        keys: Sequence[str],
        host_indices: torch.Tensor | None,
        extra_info: HiCacheStorageExtraInfo | None,
    ) -> list[bool]:
        def store(attached: Attached, client: RadixClient) -> list[bool]:
            begin = time.perf_counter()
            batch, path, first = self._batch(attached, pool, keys, host_indices, extra_info)
            trailing = attached.trailing.get(batch.part.name)
            if trailing is not None:
                ok = trailing.write(client, path, first, batch)
                if not ok.all():
                    self._tell(f"{_NO_ROOM} --{batch.part.component.name.lower()}-ratio")
            else:
                if extra_info is not None and extra_info.prefix_keys is None:
                    self._tell(_NO_PREFIX)
                ok = attached.full.write(client, path, first, batch)
                if batch.part.last:
                    stored = len(ok) if ok.all() else int(ok.argmin())  # without a gap
                    attached.settle(client, path[: first + stored], first)
                    client.flush(timeout_s=0)
            self._meter.stored(int(ok.sum()), batch.part, time.perf_counter() - begin)
            return list(ok.tolist())

        return self._attempt([False] * len(keys), store)

    def _batch(
        self,
        attached: Attached,
        pool: str,
        keys: Sequence[str],
        host_indices: torch.Tensor | None,
        extra_info: HiCacheStorageExtraInfo | None,
    ) -> tuple[Batch, Keys, int]:
        """The pages of a call, the path that ends with them, and the position of the first.

        ValueError for a pool that has no part in a page, and for indices of other pages.
        """
        part = attached.parts.of(pool)
        if part is None or host_indices is None:
            raise ValueError(
                f"SGLang transfers {len(keys)} pages of the host pool {pool}, "
                + ("which it never registered" if part is None else "and says not which")
            )
        path, first = self._paths.of(keys, extra_info)
        return Batch(part, path[first:], host_indices, self._tell), path, first

    def _attempt(self, miss: _T, call: Callable[[Attached, RadixClient], _T]) -> _T:
        """What the call returns; `miss` when there is no server, or anything goes wrong."""
        attached = self._attachment.at_batch()
        client = attached.connection.client if attached is not None else None
        if attached is None or client is None:
            return miss
        try:
            try:
                return call(attached, client)
            except ServerNotReady:  # told once to each thread when a server was replaced
                return call(attached, client)
        except (RadixError, TimeoutError) as error:
            self._tell(str(error))
        except Exception as error:  # an error here would end SGLang's thread
            place = traceback.extract_tb(error.__traceback__)[-1]
            same = f"{type(error).__name__} at {place.filename}:{place.lineno}"
            self._tell(f"{type(error).__name__}: {error}", same, trace=True)
        return miss

    def _tell(self, words: str, same: str = "", *, trace: bool = False) -> None:
        """Once in a time for the same words, or for the same trouble whatever its words."""
        same = same or words
        now = time.monotonic()
        if now - self._told.get(same, -_QUIET_S) >= _QUIET_S:
            if len(self._told) > 100:
                self._told.clear()
            self._told[same] = now
            _log.warning("radixshmem: %s", words, exc_info=trace)

    # ------------------------------------------------------------ single pages, by value

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> None:
        """None: SGLang calls this, and the three below, only for backends that copy twice."""

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        return [None] * len(keys)

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        return False

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        return False
