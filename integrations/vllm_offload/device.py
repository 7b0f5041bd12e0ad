# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What copying needs of a GPU: streams, events, pinned memory. `TorchCuda` is a real one."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Addresses", "Device", "Event", "Stream", "TorchCuda"]

Addresses = npt.NDArray[np.uint64]
_PAUSE_S = 0.0001


class Event(Protocol):
    def query(self) -> bool:
        """Whether the GPU has come to where it was recorded."""


class Stream(Protocol):
    """Does what it is told in order, later, by itself."""

    def wait(self, event: Event) -> None:
        """Nothing that comes after it begins before the event."""

    def copy(self, sources: Addresses, targets: Addresses, sizes: Addresses) -> None:
        """Copy fragments. RuntimeError when the GPU refuses them."""

    def record(self) -> Event:
        """Comes when all before it is done."""


class Device(Protocol):
    def stream(self) -> Stream:
        """A new one."""

    def compute_event(self) -> Event:
        """Comes when all is done that the engine has given to its stream until now."""

    def compute_waits(self, event: Event) -> None:
        """Nothing that the engine gives to its stream from now on begins before the event."""

    def pinned(self, size: int) -> tuple[int, object]:
        """Address of new memory that the GPU reaches by itself, and what keeps it."""

    def pause(self) -> None:
        """Let a short time pass."""


class TorchCuda:
    """A GPU by PyTorch, and vLLM's batched copies where this build has them."""

    def __init__(self, device: Any) -> None:
        """`device`: the torch.device of the KV cache."""
        import torch

        self._cuda: Any = torch.cuda
        self._device = device
        self._copy = _batched_copy() or _single_copies()

    def stream(self) -> Stream:
        return _TorchStream(self._cuda, self._cuda.Stream(self._device), self._copy)

    def compute_event(self) -> Event:
        event: Event = self._cuda.current_stream(self._device).record_event()
        return event

    def compute_waits(self, event: Event) -> None:
        self._cuda.current_stream(self._device).wait_event(event)

    def pinned(self, size: int) -> tuple[int, object]:
        import torch

        memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return memory.data_ptr(), memory

    def pause(self) -> None:
        time.sleep(_PAUSE_S)


class _TorchStream:
    def __init__(self, cuda: Any, stream: Any, copy: Any) -> None:
        self._cuda = cuda
        self._stream = stream
        self._copy = copy

    def wait(self, event: Event) -> None:
        self._stream.wait_event(event)

    def copy(self, sources: Addresses, targets: Addresses, sizes: Addresses) -> None:
        with self._cuda.stream(self._stream):
            self._copy(sources, targets, sizes, self._stream)

    def record(self) -> Event:
        event: Event = self._stream.record_event()
        return event


def _batched_copy() -> Any:
    """vLLM's operation that hands many copies to the driver at once; None without it."""
    import torch
    from vllm import _custom_ops as operations

    namespace = getattr(torch.ops, "_C_cache_ops", None)
    if not hasattr(namespace, "swap_blocks_batch") or not hasattr(operations, "swap_blocks_batch"):
        return None

    def copy(sources: Addresses, targets: Addresses, sizes: Addresses, _: Any) -> None:
        operations.swap_blocks_batch(
            torch.from_numpy(sources.view(np.int64)),
            torch.from_numpy(targets.view(np.int64)),
            torch.from_numpy(sizes.view(np.int64)),
        )

    return copy


def _single_copies() -> Any:
    """One asynchronous copy of the driver for each fragment."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuMemcpyAsync.argtypes = [
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]

    def copy(sources: Addresses, targets: Addresses, sizes: Addresses, stream: Any) -> None:
        for source, target, size in zip(
            sources.tolist(), targets.tolist(), sizes.tolist(), strict=True
        ):
            code = driver.cuMemcpyAsync(target, source, size, stream.cuda_stream)
            if code != 0:
                raise RuntimeError(f"cuMemcpyAsync of {size} bytes failed with {code}")

    return copy
