# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A node without engines: one small server, and fake schedulers with real managers on it."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from e2e.vllm_offload.fake_request import chain
from e2e.vllm_offload.fake_scheduler import FakeScheduler
from e2e.vllm_offload.slot_bytes import (
    BLOCK_TOKENS,
    FULL,
    MAMBA,
    SWA,
    Workers,
    geometry_of,
    groups_of,
)

from radixshmem import COMPONENT_MASK_FULL, RadixClient
from radixshmem.integrations.vllm_offload.manager import RadixShmemManager
from radixshmem_core.config import ServerConfig
from radixshmem_core.server import RadixServer


class FakeNode:
    """Pools of about `blocks` slots each."""

    def __init__(self, name: str, model: str, blocks: int = 64, ranks: int = 1) -> None:
        self.model = model
        self.groups = groups_of(model, ranks)
        sizes = [self.groups.slot_bytes(kind) for kind in (FULL, SWA, MAMBA)]
        total = sum(sizes)
        self.config = ServerConfig(
            name,
            data_bytes=blocks * total,
            swa_ratio=sizes[1] / total,
            mamba_ratio=sizes[2] / total,
            slot_align=1,
            background_evict_ratio=0,
            prefault=False,
        )
        self.server = RadixServer(self.config).start()
        self.client = self._client("watch")
        self.watch = Workers(self.client, self.groups)
        self.engines: list[FakeScheduler] = []
        self.options: dict[str, Any] = {}  # of all engines

    def _client(self, group: str) -> RadixClient:
        return RadixClient(self.config.name, geometry_of(self.groups), group=group)

    def reconnect(self) -> None:
        """The server was replaced."""
        self.client.close()
        self.client = self._client("watch")
        self.watch = Workers(self.client, self.groups)

    def engine(self, *, block_tokens: int = BLOCK_TOKENS, **options: Any) -> FakeScheduler:
        client = self._client(f"engine-{len(self.engines)}")
        options = self.options | options
        steps = options.get("lag", 0) + 1
        manager = RadixShmemManager(
            client, self.groups, block_tokens, 1, 1000, steps_in_flight=steps
        )
        engine = FakeScheduler(self.model, manager, Workers(client, self.groups), **options)
        self.engines.append(engine)
        return engine

    def __enter__(self) -> FakeNode:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for engine in self.engines:
            engine.manager.shutdown()
        self.client.close()
        self.server.close()

    def present(self, blocks: Iterable[int]) -> int:
        """How many blocks of a path are cached; AssertionError when one has other bytes."""
        hashes = chain(blocks)
        words = [int.from_bytes(h[:8], "little") for h in hashes]
        deepest = 0
        for kind in (FULL, SWA, MAMBA):
            if not self.groups.parts(kind):
                continue
            mask = COMPONENT_MASK_FULL | 1 << kind
            found = self.client.query(words, mask, local_only=True, lock=True, update_meta=False)
            self._check(hashes, kind, found)
            found.finalize()
            if kind == FULL:
                deepest = found.common_hit
        return deepest

    def _check(self, hashes: list[bytes], kind: int, found: Any) -> None:
        if found.common_hit == 0:
            return
        if kind == FULL:
            slots = dict(enumerate(found.full_slots.tolist()))
        elif kind == SWA:
            slots = dict(enumerate(found.swa_slots.tolist(), found.swa_start))
        else:
            slots = {found.common_hit - 1: found.mamba[1]}
        for group, shape in enumerate(self.groups.groups):
            if shape.component == kind:
                for position, slot in slots.items():
                    self.watch.check(hashes[position] + group.to_bytes(4, "big"), slot)

    def assert_idle(self) -> None:
        """Every slot can be had: none is pinned, being written or lost. Drops what is cached."""
        for engine in self.engines:
            manager = engine.manager
            assert manager.stores.empty
            assert manager.quarantine.empty
            assert manager._requests == {}
            assert manager._offered == {}
        assert self.client.index._index.pins() == []
        store = self.client.store
        assert store is not None
        for kind in (FULL, SWA, MAMBA):
            if self.groups.parts(kind):
                total = store.pool(kind).num_slots
                slots = self.client.allocate_slots(total, kind)
                assert len(slots) == total, f"{total - len(slots)} {kind.name} slots are lost"
                self.client.recycle_slots(slots, kind)
