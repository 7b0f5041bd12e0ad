# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What can be wrong at the start of a server: each is told at once and names the fix."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from e2e.harness import Process, ServerProcess

from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import RadixError
from radixshmem_core.server import RadixServer


def run_server(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "radixshmem_core.cli", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data-bytes", "1M"], "no name is given; use --name"),
        (["--name", "x", "--data-bytes", "1M"], "name is 'x'; it must start with \"/\""),
        (["--name", "/x"], "neither data_bytes nor index_slots is given"),
        (["--name", "/x", "--data-bytes", "many"], "data_bytes is 'many'"),
        (["--name", "/x", "--data-bytes", "12"], "not one slot fits"),
        (["--name", "/x", "--data-byte", "1M"], "did you mean --data-bytes"),
        (["--name", "/x", "--data-bytes", "1M", "--registry", "etcd://h:1"], "--rpc-address"),
        (["--name", "/x", "--config", "/absent.toml"], "cannot read the config file /absent.toml"),
        (["--name", "/" + "n" * 94, "--data-bytes", "1M"], "108 bytes, the system allows 107"),
        (["--name", "/x", "--data-bytes", "1M", "--group", "no_such"], "no such group"),
        (["--name", "/x", "--data-bytes", "1M", "--endpoint", "unix:///absent/s"], "create it"),
        (
            ["--name", "/x", "--data-bytes", "1M", "--hugepage-path", "/absent"],
            "/absent, needed for hugepage_path, is not a directory; mount hugetlbfs there",
        ),
        (
            ["--name", "/x", "--data-bytes", "1M", "--hugepage-path", "/dev/shm"],
            "is not a hugetlbfs mount",
        ),
    ],
)
def test_bad_options_are_told_with_exit_code_2(flags: list[str], message: str) -> None:
    done = run_server(*flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_shared_memory_too_small_names_the_fix(region_name: str) -> None:
    with pytest.raises(RadixError, match=r"/dev/shm has only .*remount,size=.*--shm-size"):
        RadixServer(ServerConfig(region_name, data_bytes="30T")).start()
    done = run_server("--name", region_name, "--data-bytes", "30T")
    assert done.returncode == 2
    assert "remount,size=" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"data_bytes": "1M", "max_clients": 65535, "max_pins": 2**20},
            r"1\.0 MiB of slots \(data_bytes\) and 5\d\d\.\d GiB of index for one slot or more "
            r"\(max_clients 65,535, max_pins 1,048,576\) need \d+ bytes .*, but .* ask for less",
        ),
        (
            {"index_slots": 2**30 - 1, "max_clients": 65535, "max_pins": 2**18},
            r"\d+\.\d GiB of index for 1,073,741,823 slots \(.* needs .* ask for less",
        ),
    ],
)
def test_index_that_cannot_fit_is_refused_at_start(
    region_name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RadixError, match=f"{region_name}: {message}"):
        RadixServer(ServerConfig(region_name, **options)).start()


def test_memlock_is_no_news_by_default(region_name: str) -> None:
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096));"
        "from radixshmem_core.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    for verbose, told in (("--no-prefault", False), ("--verbose", True)):
        server = Process("-c", program, "--name", region_name, "--data-bytes", "1M", verbose)
        try:
            assert "waits for" in server.line()
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
        finally:
            server.kill()
        assert ("memlock limit is 4.0 KiB" in server.errors) is told


def test_failed_start_gives_the_name_back(region_name: str) -> None:
    with pytest.raises(RadixError):
        RadixServer(ServerConfig(region_name, data_bytes="30T")).start()
    with RadixServer(ServerConfig(region_name, data_bytes="1M")) as server:
        assert server.info().mode == "waiting"


def test_unwritable_directory_is_told() -> None:
    program = """
import os
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import RadixError
from radixshmem_core.host import check_directories
if os.geteuid() == 0:
    os.setuid(65534)  # root may write everywhere
try:
    check_directories(ServerConfig("/x", data_bytes="1M", endpoint="unix:///x.sock"))
except RadixError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "/, needed for the control socket, cannot be written by user" in done.stdout


def test_started_twice_is_an_error(region_name: str) -> None:
    server = RadixServer(ServerConfig(region_name, data_bytes="1M")).start()
    with pytest.raises(RadixError, match="was started before"):
        server.start()
    server.close()
    with pytest.raises(RadixError, match="not running in this process"):
        server.info()


def test_options_without_effect_are_warned_about(
    region_name: str, start_server: Callable[..., ServerProcess]
) -> None:
    server = start_server("--rpc-port", "17200", "--transfer-port", "5")
    server.event("waiting")
    assert server.stop() == 0
    assert "without effect here: rpc_port, transfer_port" in server.errors


def test_group_may_use_the_files(region_name: str) -> None:
    with RadixServer(ServerConfig(region_name, data_bytes="1M", group="root")):
        for suffix in (".sock", ".live"):
            mode = os.stat(f"/dev/shm/{region_name[1:]}{suffix}").st_mode
            assert mode & 0o777 == 0o660
