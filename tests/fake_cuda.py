# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The fake CUDA driver of fake_cuda.cc, compiled and seen from Python."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["OUT_OF_MEMORY", "Call", "FakeCuda", "cuda_driver", "fake_cuda"]

_SOURCE = Path(__file__).with_name("fake_cuda.cc")
_FLAGS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-pthread")
OUT_OF_MEMORY = 2


class _Call(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int64),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("code", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Call:
    """One call that reached the driver."""

    name: str
    address: int
    bytes: int
    code: int


class FakeCuda:
    """`library` is what the code under test opens instead of libcuda.so.1."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("g++") or shutil.which("c++")
        assert compiler, "the fake CUDA driver needs g++"
        self.library = str(folder / "libfakecuda.so")
        subprocess.run(
            [compiler, *_FLAGS, "-o", self.library, str(_SOURCE)],
            check=True,
            timeout=120,
        )
        self._calls = ctypes.CDLL(self.library)
        self._calls.fake_registered_bytes.restype = ctypes.c_uint64
        self._calls.fake_call_count.restype = ctypes.c_int64
        self._calls.fake_retained.restype = ctypes.c_int64

    def reset(
        self,
        *,
        fail_at: int = -1,
        fail_code: int = OUT_OF_MEMORY,
        init_code: int = 0,
        allowed: int = -1,
    ) -> None:
        """Forget everything. Registration number `fail_at` will fail; only the first `allowed` pass
        until `allow` (-1: all)."""
        i64 = ctypes.c_int64
        self._calls.fake_reset(i64(fail_at), fail_code, init_code, i64(allowed))

    def allow(self, registrations: int) -> None:
        self._calls.fake_allow(ctypes.c_int64(registrations))

    def await_calls(self, count: int) -> None:
        assert self._calls.fake_await_calls(ctypes.c_int64(count)), self.calls()

    def calls(self) -> list[Call]:
        found = []
        call = _Call()
        for index in range(self._calls.fake_call_count()):
            self._calls.fake_call(ctypes.c_int64(index), ctypes.byref(call))
            name = "unregister" if call.kind else "register"
            found.append(Call(name, call.address, call.bytes, call.code))
        return found

    @property
    def registered_bytes(self) -> int:
        return int(self._calls.fake_registered_bytes())

    def covers(self, address: int, size: int) -> bool:
        """Whether one registration holds all of it."""
        return bool(self._calls.fake_covers(ctypes.c_uint64(address), ctypes.c_uint64(size)))

    @property
    def thread_is_clean(self) -> bool:
        """Whether the calling thread has no context, and the usual way to capture graphs."""
        return bool(self._calls.fake_thread_is_clean())

    @property
    def retained(self) -> int:
        return int(self._calls.fake_retained())


@pytest.fixture(scope="session")
def cuda_driver(tmp_path_factory: pytest.TempPathFactory) -> FakeCuda:
    return FakeCuda(tmp_path_factory.mktemp("fake-cuda"))


@pytest.fixture
def fake_cuda(cuda_driver: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A new fake CUDA driver, in the place of the real one."""
    cuda_driver.reset()
    monkeypatch.setattr("radixshmem_core.cuda._DRIVER", cuda_driver.library)
    return cuda_driver
