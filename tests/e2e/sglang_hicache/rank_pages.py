# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The pages of one rank in the shared cache, for tests that take some away or damage them."""

from __future__ import annotations

import hashlib
import struct
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
from e2e.sglang_hicache.node import TAG_BYTES
from sglang_server import PAGE_TOKENS

from radixshmem import ComponentType, RadixClient, fold_page_keys
from radixshmem.integrations.sglang_hicache.identity import rank_salt

__all__ = ["damage", "keep_only", "page_keys", "path_of", "spoil"]

Path = npt.NDArray[np.uint64]


def page_keys(tokens: list[int]) -> list[str]:
    """SGLang's own, of the whole pages of a prompt without salt and extra_key."""
    keys: list[str] = []
    digest = b""
    for begin in range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS):
        page = tokens[begin : begin + PAGE_TOKENS]
        digest = hashlib.sha256(digest + struct.pack(f"<{len(page)}I", *page)).digest()
        keys.append(digest.hex())
    return keys


def path_of(tokens: list[int], rank: int) -> Path:
    config = SimpleNamespace(is_mla_model=False, tp_rank=rank, pp_rank=0, attn_cp_rank=0)
    return fold_page_keys(page_keys(tokens), salt=rank_salt(config))


def keep_only(client: RadixClient, kept: dict[int, Path]) -> None:
    """Of all that is stored, only these paths: the pages in front of a rank's missing ones."""
    store = client.store
    assert store is not None
    pages = []
    for path in kept.values():
        found = client.query(path)
        assert found.common_hit == len(path)
        pages.append([bytes(store.slot_view(slot)) for slot in found.full_slots])
    client.reset()
    for path, contents in zip(kept.values(), pages, strict=True):
        slots = client.allocate_slots(len(path))
        for slot, content in zip(slots, contents, strict=True):
            store.slot_view(slot)[:] = content
        assert client.insert(path, slots).error == 0


def damage(client: RadixClient, path: Path, page: int) -> None:
    """As if a writer had died over this page of the KV."""
    found = client.query(path)
    assert found.common_hit > page
    slot = int(found.full_slots[page])
    assert int.from_bytes(_tag(client, slot), "little") == int(path[page])
    spoil(client, slot)


def spoil(client: RadixClient, slot: int, component: ComponentType = ComponentType.FULL) -> None:
    """The tag, which is written last, is that of another page."""
    _tag(client, slot, component)[:] = bytes(TAG_BYTES)


def _tag(
    client: RadixClient, slot: int, component: ComponentType = ComponentType.FULL
) -> memoryview:
    assert client.geometry is not None
    size = client.geometry["pools"][component.name.lower()]["slot_bytes"]
    return client.slot_view(slot, component)[size - TAG_BYTES : size]
