# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A GPU that does nothing by itself: its streams go on only when they are stepped.

A stream does its operations in order, but which stream goes on is the test's choice, so what is not
ordered by an event happens in the order that hurts. A copy has to be between the KV cache and
memory that the GPU can reach: pinned buffers, or what the fake driver holds registered in one piece
at that moment.
"""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable

import numpy as np
from fake_cuda import FakeCuda

from radixshmem.integrations.vllm_offload.device import Addresses


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.came = False
        self.broken = False

    def query(self) -> bool:
        if self.broken:
            raise RuntimeError("CUDA error: the fake GPU is broken")
        self._gpu.now += self._gpu.seconds_per_look
        if self._gpu.steps_when_looked_at:
            self._gpu.step()
        return self.came


class FakeStream:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.operations: deque[tuple[str, object]] = deque()
        self.hangs = False
        self.refuses = False

    def wait(self, event: FakeEvent) -> None:
        self.operations.append(("wait", event))

    def record(self) -> FakeEvent:
        event = FakeEvent(self._gpu)
        self._gpu.events.append(event)
        self.operations.append(("record", event))
        return event

    def copy(self, sources: Addresses, targets: Addresses, sizes: Addresses) -> None:
        if self.refuses:
            raise RuntimeError("CUDA error: the fake GPU refuses to copy")
        copies = np.stack([sources, targets, sizes], axis=1).tolist()
        self.run(lambda: self._gpu.copy_now(copies))

    def run(self, operation: Callable[[], None]) -> None:
        """Give the stream something to do."""
        self.operations.append(("run", operation))

    def step(self) -> bool:
        """Do the next operation; False when there is none that could be done."""
        if self.hangs or not self.operations:
            return False
        kind, what = self.operations[0]
        if isinstance(what, FakeEvent):
            if kind == "wait" and not what.came:
                return False
            what.came = True
        else:
            assert callable(what)
            what()
        self.operations.popleft()
        return True


class FakeGpu:
    """The Device of the adapter."""

    def __init__(self, driver: FakeCuda, seed: int = 0) -> None:
        self._driver = driver
        self._dice = random.Random(seed)
        self._pinned: list[tuple[int, int, object]] = []
        self.cache: list[tuple[int, int]] = []  # address, bytes of the KV cache's tensors
        self.events: list[FakeEvent] = []
        self.now = 0.0  # what the adapter takes for the time
        self.copies = 0
        # Each time that an event is looked at:
        self.steps_when_looked_at = False
        self.seconds_per_look = 0.0
        self.compute = FakeStream(self)
        self.streams: list[FakeStream] = []  # the adapter's: stores, loads

    # ------------------------------------------------------------ Device

    def stream(self) -> FakeStream:
        self.streams.append(FakeStream(self))
        return self.streams[-1]

    def compute_event(self) -> FakeEvent:
        return self.compute.record()

    def compute_waits(self, event: FakeEvent) -> None:
        self.compute.wait(event)

    def pinned(self, size: int) -> tuple[int, object]:
        memory = np.full(size, 0xEE, np.uint8)
        self._pinned.append((memory.ctypes.data, size, memory))
        return memory.ctypes.data, memory

    def pause(self) -> None:
        self.now += 0.05
        self.step()

    # ------------------------------------------------------------ the test's

    @property
    def stores(self) -> FakeStream:
        return self.streams[0]

    @property
    def loads(self) -> FakeStream:
        return self.streams[1]

    @property
    def buffers(self) -> int:
        """How many pinned buffers were asked for."""
        return len(self._pinned)

    def step(self) -> bool:
        """One operation of some stream; False when none can go on."""
        streams = [*self.streams, self.compute]
        self._dice.shuffle(streams)
        return any(stream.step() for stream in streams)

    def transfers_first(self) -> None:
        """All that can be done, what the adapter has asked for before what the engine has."""
        while any(stream.step() for stream in [*self.streams, self.compute]):
            pass

    def compute_first(self) -> None:
        while any(stream.step() for stream in [self.compute, *self.streams]):
            pass

    def copy_now(self, copies: list[tuple[int, int, int]]) -> None:
        for source, target, size in copies:
            host = source if self._in_cache(target, size) else target
            assert self._in_cache(source + target - host, size), "one side is the KV cache"
            assert self._reaches(host, size), "the GPU reaches registered and pinned memory only"
            ctypes.memmove(target, source, size)
            self.copies += 1

    def _in_cache(self, address: int, size: int) -> bool:
        return any(a <= address and address + size <= a + length for a, length in self.cache)

    def _reaches(self, address: int, size: int) -> bool:
        return self._driver.covers(address, size) or any(
            a <= address and address + size <= a + length for a, length, _ in self._pinned
        )
