# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import radixshmem

DEMO = Path(__file__).parents[2] / "benchmarks" / "demo.py"
TIMEOUT_S = 90.0
LONG = ("--requests", "20000", "--blocks", "600", "--slot-bytes", "512", "--workers", "2")
CORRUPTED = ("--requests", "4000", "--blocks", "600", "--slot-bytes", "512", "--workers", "2")


@contextlib.contextmanager
def demo(*flags: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(DEMO), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_name(process: subprocess.Popen[str]) -> radixshmem.RadixClient:
    """A client of the demo's own server, once blocks are in it."""
    client = None
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        with contextlib.suppress(radixshmem.RadixError, TimeoutError):
            client = client or radixshmem.RadixClient(f"/radix_demo_{process.pid}")
            client.wait_ready(1.0)
            if client.total_blocks() > 100:
                return client
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    raise TimeoutError("the demo stored nothing")


def left_over(process: subprocess.Popen[str]) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if f"radix_demo_{process.pid}" in name]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_small_run_hits_evicts_and_reads_no_wrong_byte(tmp_path: Path) -> None:
    report = tmp_path / "demo.json"
    flags = ("--requests", "300", "--blocks", "900", "--slot-bytes", "512", "--workers", "3")
    with demo(*flags, "--json", str(report)) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, err
        assert left_over(process) == []
    numbers = json.loads(report.read_text(encoding="utf-8"))
    assert numbers["wrong_bytes"] == 0
    assert numbers["requests"] == 300
    assert numbers["blocks_hit"] > 0
    assert numbers["blocks_evicted"] > 0
    assert numbers["blocks_hit"] + numbers["blocks_missed"] == numbers["blocks_asked"]
    assert 0 < numbers["hit_ratio"] <= numbers["hit_ratio_infinite"]
    assert "wrong bytes" in out


def test_trace_file_and_expected_hit_ratio(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    line = {"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [0, 1]}
    trace.write_text(f"{json.dumps(line)}\n" * 4, encoding="utf-8")
    flags = ("--trace", str(trace), "--workers", "1", "--blocks", "8", "--slot-bytes", "64")
    with demo(*flags, "--expect-hit-ratio", "0.75", "--tolerance", "0") as process:
        assert process.communicate(timeout=TIMEOUT_S)[1] == ""
        assert process.returncode == 0
    with demo(*flags, "--expect-hit-ratio", "0.5", "--tolerance", "0.2") as process:
        err = process.communicate(timeout=TIMEOUT_S)[1]
        assert process.returncode == 1
        assert "hit ratio 0.7500 is not within 0.2 of 0.5" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--slot-bytes", "12"), "must be a multiple of 8, got 12"),
        (("--workers", "0"), "--workers must be at least 1"),
        (("--trace", "/no/such/trace"), "/no/such/trace"),
    ],
)
def test_wrong_usage_is_told(flags: tuple[str, ...], message: str) -> None:
    with demo(*flags) as process:
        err = process.communicate(timeout=TIMEOUT_S)[1]
        assert process.returncode == 2
        assert message in err


def test_foreign_bytes_in_the_slots_are_found() -> None:
    with demo(*CORRUPTED) as process:
        with wait_for_name(process) as client:
            assert client.store is not None
            slots = client.store.pool_view(radixshmem.ComponentType.FULL)
            slots[:] = b"\xff" * len(slots)
            slots.release()
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1, out
    assert re.search(r"\d+ wrong bytes were read; first: \d+ of 512 bytes differ in slot", err)


def test_killed_worker_fails_the_run_and_leaves_nothing() -> None:
    with demo(*LONG) as process:
        wait_for_name(process).close()
        workers = [
            child
            for child in children(process.pid)
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        err = process.communicate(timeout=TIMEOUT_S)[1]
        assert process.returncode == 1
        assert f"(pid {workers[0]}) died with exit code -9" in err
        assert left_over(process) == []


def test_ctrl_c_is_told_in_a_line_and_leaves_nothing() -> None:
    with demo(*LONG) as process:
        wait_for_name(process).close()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all processes get it
        err = process.communicate(timeout=TIMEOUT_S)[1]
        assert process.returncode == 130, err
        assert err == "demo: interrupted; its server and workers are gone\n"
        assert left_over(process) == []
