# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""A real SGLang server of a tiny model on the CPU, as users start it: its own processes, HTTP.

What SGLang lacks there is in sglang_cpu/; SGLang itself is unmodified.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from free_port import free_port
from mapped_files import mapped_files
from server_process import interrupt_held
from sglang_client import SGLangClient

__all__ = ["PAGE_TOKENS", "SGLangServer", "cpu_environment", "dynamic_flags", "native_flags"]

PAGE_TOKENS = 16
_ADMIN_KEY = "admin"
_ON_CPU = Path(__file__).with_name("sglang_cpu")
_CONFIGS = Path(__file__).parents[1] / "configs"
_STOP_S = 60.0
_POLL_S = 0.1
_LAST_WORDS = 4000  # characters


def native_flags(server: str) -> list[str]:
    """SGLang's flags for a storage in the radix-server of this name."""
    return _storage_flags("radixshmem", "sglang_hicache.json", server)


def dynamic_flags(server: str) -> list[str]:
    """The same, by the way that SGLang has for backends it does not know."""
    return _storage_flags("dynamic", "sglang_hicache_dynamic.json", server)


def _storage_flags(backend: str, config: str, server: str) -> list[str]:
    """`config`: what users copy. SGLang asks for no less than `prefetch_threshold` tokens."""
    extra_config = json.loads((_CONFIGS / config).read_text(encoding="utf-8"))
    extra_config |= {"server_name": server, "prefetch_threshold": PAGE_TOKENS}
    return [
        *("--hicache-storage-backend", backend),
        *("--hicache-storage-backend-extra-config", json.dumps(extra_config)),
    ]


class SGLangServer:
    """Starts at once; `wait` for it. A context manager: its processes are gone when it is left."""

    def __init__(self, log: Path, model: str, *flags: str, **environment: str) -> None:
        self._log = log
        self._files: set[str] = set()
        self._killed = False
        port = free_port()
        self.client = SGLangClient(port, _ADMIN_KEY, timeout_s=120.0)
        command = [
            *(sys.executable, "-m", "sglang.launch_server", "--model-path", model),
            *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)),
            *("--admin-api-key", _ADMIN_KEY, "--device", "cpu", "--dtype", "float32"),
            *("--attention-backend", "torch_native", "--skip-tokenizer-init"),
            *("--page-size", str(PAGE_TOKENS), "--max-total-tokens", "4096"),
            *("--mem-fraction-static", "0.2", "--enable-cache-report", "--enable-metrics"),
            *("--enable-hierarchical-cache", "--hicache-ratio", "2", "--sleep-on-idle"),
            *("--hicache-storage-prefetch-policy", "wait_complete"),
            *flags,
        ]
        with interrupt_held(), log.open("wb") as words:
            self._process = subprocess.Popen(
                command,
                cwd=log.parent,  # in the repository Python would find the sources first
                stdout=words,
                stderr=subprocess.STDOUT,
                env=cpu_environment(environment),
                start_new_session=True,
            )

    def __enter__(self) -> SGLangServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait(self, timeout_s: float) -> SGLangServer:
        """Until it answers. RuntimeError with its last words, or TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while not self.client.is_up():
            if not self.alive:
                raise RuntimeError(f"the SGLang server ended; it said:\n{self.last_words()}")
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the SGLang server was not up within {timeout_s} s:\n{self.last_words()}"
                )
            time.sleep(_POLL_S)
        self._note_files()
        return self

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def last_words(self) -> str:
        return self.log().strip()[-_LAST_WORDS:]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def died(self) -> bool:
        """It has ended, and by no call of this object."""
        return not self.alive and not self._killed

    def _pids(self) -> list[int]:
        """Its processes that live: HTTP, scheduler of each rank, detokenizer."""
        return [pid for pid in _all_pids() if _session_of(pid) == self._process.pid]

    def stop(self) -> None:
        """SIGTERM, as an operator does it; what still lives at the deadline is killed."""
        self._killed |= self.alive
        self._note_files()
        if self.alive:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to all of its processes; returns when they are gone."""
        self._killed |= self.alive
        self._note_files()
        deadline = time.monotonic() + _STOP_S
        while pids := self._pids():
            for pid in pids:
                # Python's resource trackers clean up behind the others, and end then.
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {pids} of SGLang outlived SIGKILL for {_STOP_S} s")
            time.sleep(_POLL_S)
        self._process.wait(_STOP_S)
        for file in self._files:
            Path(file).unlink(missing_ok=True)

    def _note_files(self) -> None:
        """What SGLang leaves in /dev/shm, some of it however it ends."""
        self._files |= mapped_files(self._pids(), "sgl(?:ang_loads|_shm)_")


def cpu_environment(more: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """This process' own and `more`, and what SGLang needs on a CPU."""
    environment = {**os.environ, **more}
    path = [str(_ON_CPU), environment.get("PYTHONPATH", "")]
    return environment | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONWARNINGS": "ignore",
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # SGLang compiles its hash of pages at the first request, once for each of these folders.
        "TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "torch_extensions"),
        "TORCHDYNAMO_DISABLE": "1",  # compiling for a tiny model takes longer than running it
    }


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _session_of(pid: int) -> int:
    """The session of a living process; 0 when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    state, _parent, _group, session = stat.rpartition(")")[2].split()[:4]
    return 0 if state in "ZX" else int(session)
