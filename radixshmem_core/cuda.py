# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Registration of a SlotStore with CUDA, in the background.

Chunks are registered in the order of the slots, so one number says what is registered: everything
before `registered_bytes`. A copy that a GPU makes by itself keeps what `hold` returned until it has
ended: until then its memory stays registered and mapped, even when a later chunk fails, or when the
store is unregistered or closed.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref

from radixshmem_core import _core

from .errors import RadixError
from .sizes import format_size

__all__ = ["CudaRegistration"]

# Small: the driver lets no other call of the process pass while it registers one.
_CHUNK_BYTES = 128 << 20
_DRIVER = "libcuda.so.1"
_LOG_EVERY_S = 10.0
_STOP_TIMEOUT_S = 10.0

_log = logging.getLogger("radixshmem.cuda")


class CudaRegistration:
    """One attempt to register a store, made by `SlotStore.register_cuda`. Safe to use from several
    threads."""

    def __init__(self, core: _core.SlotStore) -> None:
        """Begins. RadixError when this process has no usable CUDA driver."""
        self._name = core.name
        self._error: RadixError | None = None
        chunks = core.cuda_chunks(_DRIVER, _CHUNK_BYTES)
        self._total_bytes = chunks.total_bytes
        self._chunks: _core.PinnedChunks | None = chunks
        self._thread = threading.Thread(target=self._run, name="radixshmem-cuda", daemon=True)
        _registrations.add(self)
        self._thread.start()

    @property
    def total_bytes(self) -> int:
        """What there is to register: `data_bytes` of the store."""
        return self._total_bytes

    @property
    def registered_bytes(self) -> int:
        """Everything before this offset in `data_view()` is registered."""
        chunks = self._chunks
        return chunks.pinned_bytes if chunks is not None else 0

    @property
    def error(self) -> RadixError | None:
        """Why it failed; what was registered has been given back then."""
        return self._error

    def done(self) -> bool:
        """Whether it has ended: all is registered, or it failed, or was stopped."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until all is registered. Raises `error`, or RadixError when it was stopped; TimeoutError
        at the timeout, and the work goes on."""
        self._thread.join(timeout_s)
        if not self.done():
            raise TimeoutError(
                f"{format_size(self.registered_bytes)} of {format_size(self.total_bytes)} of "
                f"SlotStore {self._name} are registered with CUDA after {timeout_s:g} s"
            )
        if self._error is not None:
            raise self._error
        if self._chunks is None:
            raise RadixError(f"the registration of SlotStore {self._name} with CUDA was stopped")

    def hold(self, end: int) -> object | None:
        """What keeps [0, end) of `data_view()` registered and mapped for as long as it lives; None
        when that is not registered now."""
        chunks = self._chunks
        return chunks if chunks is not None and end <= chunks.pinned_bytes else None

    def stop(self) -> None:
        """Give all back; what is held, as soon as it is not. Idempotent."""
        self._chunks = None  # gives it back where this was the last reference
        self._thread.join(_STOP_TIMEOUT_S)
        if not self.done():
            _log.warning(
                "the CUDA driver still registers a part of SlotStore %s after %g s; it is given "
                "back, and unmapped, when the driver returns",
                self._name,
                _STOP_TIMEOUT_S,
            )

    def _run(self) -> None:
        begin = shown = time.monotonic()
        while (chunks := self._chunks) is not None:
            try:
                registered = chunks.pin_next()
            except RadixError as error:
                # Its traceback would keep the frames, and so the chunks, alive.
                self._error = error.with_traceback(None)
                self._chunks = None
                _log.warning("%s; what was registered is given back", error)
                return
            del chunks
            now = time.monotonic()
            if registered == self._total_bytes:
                _log.info("%s, in %.1f s", self._progress(registered), now - begin)
                return
            if now - shown >= _LOG_EVERY_S:
                shown = now
                _log.info("%s so far", self._progress(registered))

    def _progress(self, registered: int) -> str:
        return (
            f"registered {format_size(registered)} of {format_size(self._total_bytes)} of "
            f"SlotStore {self._name} with CUDA"
        )


_registrations: weakref.WeakSet[CudaRegistration] = weakref.WeakSet()


@atexit.register
def _stop_at_exit() -> None:
    """A call of the driver must not meet the end of the process."""
    for registration in list(_registrations):
        if not registration.done():
            registration.stop()
