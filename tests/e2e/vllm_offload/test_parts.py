# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Parts of the adapter that need no engine: paths, groups of a model, the plugin."""

from __future__ import annotations

import hashlib

import pytest

from radixshmem import ComponentType
from radixshmem.integrations.vllm_offload import RadixShmemConnector
from radixshmem.integrations.vllm_offload.groups import GroupShape, map_groups
from radixshmem.integrations.vllm_offload.path import RequestPath, word_of
from radixshmem.integrations.vllm_offload.plugin import register

FULL, SWA, MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA


def _hashes(count: int, seed: str = "a") -> list[bytes]:
    return [hashlib.sha256(f"{seed}{i}".encode()).digest() for i in range(count)]


def test_a_path_follows_a_list_that_grows() -> None:
    live = _hashes(3)
    path = RequestPath(live, 1)
    assert path.position(live[2]) == 2
    live += _hashes(200, "b")
    assert path.position(live[150]) == 150
    assert len(path) == 203
    assert path.words(203).tolist() == [word_of(h) for h in live]
    assert path.position(b"nobody") is None


def test_a_path_follows_a_list_that_shrinks_and_goes_on_otherwise() -> None:
    live = _hashes(8)
    path = RequestPath(live, 1)
    path.sync()
    old = live[5]
    del live[4:]
    live += _hashes(3, "other")
    path.sync()
    assert path.position(old) is None
    assert [path.position(h) for h in live] == list(range(7))
    assert path.words(7).tolist() == [word_of(h) for h in live]


def test_a_block_of_several_hashes_is_named_by_its_last() -> None:
    live = _hashes(7)
    path = RequestPath(live, 3)
    path.sync()
    assert len(path) == 2
    assert path.position(live[2]) == 0
    assert path.position(live[5]) == 1
    assert path.position(live[1]) is None


@pytest.mark.parametrize(
    ("shapes", "named"),
    [
        ([GroupShape("MambaSpec", MAMBA)], "no full-attention group"),
        (
            [
                GroupShape("FullAttentionSpec", FULL),
                GroupShape("SlidingWindowSpec", SWA, 64),
                GroupShape("SlidingWindowSpec", SWA, 128),
            ],
            r"windows of \[2, 4\] blocks",
        ),
        (
            [GroupShape("FullAttentionSpec", FULL), GroupShape("ChunkedLocalSpec", -1)],
            r"groups \[1\] of \(0: FullAttentionSpec, 1: ChunkedLocalSpec\)",
        ),
    ],
)
def test_other_mixes_are_refused_by_name(shapes: list[GroupShape], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        map_groups(shapes, 32)


def test_the_plugin_may_be_called_again() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    register()
    register()
    assert KVConnectorFactory._registry["RadixShmemConnector"]() is RadixShmemConnector


def test_the_connector_is_found_by_the_path_of_its_module() -> None:
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    config = KVTransferConfig(
        kv_connector="RadixShmemConnector",
        kv_connector_module_path="radixshmem.integrations.vllm_offload",
        kv_role="kv_both",
    )
    assert KVConnectorFactory.get_connector_class(config) is RadixShmemConnector
