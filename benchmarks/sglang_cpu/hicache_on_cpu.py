# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""An SGLang plugin that lets HiCache copy between pools when the "device" is a CPU.

SGLang has these copies as GPU kernels only. Nothing else is changed: pools, layouts, threads and
storage are SGLang's own. With this folder on PYTHONPATH each process of SGLang 0.5.23 loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["register"]

_Index = tuple[Any, ...]


def register() -> None:
    """The entry point; to call it twice does no harm."""
    from sglang.srt.mem_cache.pool_host import base, dsa, mamba, mha, mla

    # No GPU is told of the memory of host pools, whatever their builders want.
    base.HostKVCache.pin_memory = property(lambda _: False, lambda _, __: None)
    for kind in (mha.MHATokenToKVPoolHost, mha.AsymmetricMHATokenToKVPoolHost):
        kind.load_to_device_per_layer = _load(_mha_layer)
        kind.backup_from_device_all_layer = _back_up(_mha_layers)
    mla.MLATokenToKVPoolHost.load_to_device_per_layer = _load(_mla_layer)
    mla.MLATokenToKVPoolHost.backup_from_device_all_layer = _back_up(_mla_layers)
    dsa.DSAIndexerPoolHost.load_to_device_per_layer = _load(_indexer_layer)
    dsa.DSAIndexerPoolHost.backup_from_device_all_layer = _back_up(_indexer_layers)
    if not hasattr(mamba.MambaPoolHost, "on_cpu"):
        mamba.MambaPoolHost.on_cpu = True
        for name in ("load_to_device_per_layer", "backup_from_device_all_layer"):
            original = getattr(mamba.MambaPoolHost, name)
            setattr(mamba.MambaPoolHost, name, _mamba(original))


# A pair is (device buffer of a layer, host buffer, the layer's number in the host buffer).
_Pair = tuple[Any, Any, int]


def _load(pairs_of: Callable[[Any, int, bool], list[_Pair]]) -> Callable[..., None]:
    def load(
        self: Any, _: Any, host: Any, device: Any, layer: int, __: str, *, is_draft: bool = False
    ) -> None:
        for device_buffer, host_buffer, host_layer in pairs_of(self, layer, is_draft):
            into, place = _indices(self, host_buffer, host, device, host_layer)
            device_buffer[into] = host_buffer[place].reshape(device_buffer[into].shape)

    return load


def _back_up(pairs_of: Callable[[Any], Iterator[_Pair]]) -> Callable[..., None]:
    def back_up(self: Any, _: Any, host: Any, device: Any, __: str) -> None:
        for device_buffer, host_buffer, host_layer in pairs_of(self):
            source, place = _indices(self, host_buffer, host, device, host_layer)
            host_buffer[place] = device_buffer[source].reshape(host_buffer[place].shape)

    return back_up


def _indices(pool: Any, buffer: Any, host: Any, device: Any, layer: int) -> tuple[Any, _Index]:
    """Where the tokens are in the device buffer of a layer, and in the host buffer of all."""
    page = pool.page_size
    if buffer is getattr(pool, "index_k_with_scale_buffer", None):  # has a row for each page
        device, host = device[::page] // page, host[::page] // page
        return device, (layer, host) if pool.layout == "layer_first" else (host, layer)
    places: dict[str, _Index] = {
        "layer_first": (layer, host),
        "page_first": (host, layer),
        "page_first_direct": (host // page, layer, host % page),
    }
    return device, places[pool.layout]


def _mha_layer(pool: Any, layer: int, is_draft: bool) -> list[_Pair]:
    if not is_draft and not 0 <= layer < pool.target_layer_num:
        return []
    return [
        (pool.device_k_buffers[layer], pool.k_buffer, layer),
        (pool.device_v_buffers[layer], pool.v_buffer, layer),
    ]


def _mha_layers(pool: Any) -> Iterator[_Pair]:
    for layer in range(pool.layer_num):
        yield from _mha_layer(pool, layer, True)


def _mla_layer(pool: Any, layer: int, is_draft: bool) -> list[_Pair]:
    if not is_draft and layer not in pool._target_layer_indices:
        return []
    device = pool.device_kv_buffers[pool._buffer_index_by_layer[layer]]
    return [(device, pool.kv_buffer, pool._host_layer_by_controller[layer])]


def _mla_layers(pool: Any) -> Iterator[_Pair]:
    for layer in pool._host_layer_by_controller:
        yield from _mla_layer(pool, layer, True)


def _indexer_layer(pool: Any, layer: int, is_draft: bool) -> list[_Pair]:
    if is_draft:
        number = pool._draft_host_layer(layer)
    elif layer in pool._device_to_host_layer:
        number = pool._host_layer_index(layer)
    else:
        return []
    return [(pool.packed_device_index_buffers[number], pool.index_k_with_scale_buffer, number)]


def _indexer_layers(pool: Any) -> Iterator[_Pair]:
    for number, buffer in enumerate(pool.packed_device_index_buffers):
        yield buffer, pool.index_k_with_scale_buffer, number


def _mamba(original: Callable[..., None]) -> Callable[..., None]:
    """SGLang's way for Ascend needs no kernel: it is PyTorch's indexing."""

    def copy(self: Any, *arguments: Any, **options: Any) -> None:
        *kept, _ = arguments
        original(self, *kept, "kernel_ascend", **options)

    return copy
