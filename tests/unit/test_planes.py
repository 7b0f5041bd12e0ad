# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Which data planes are usable, what is said of those that are not, and what they may use."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import eventually

from radixshmem_core.cluster import planes
from radixshmem_core.cluster.planes import (
    PlaneMissing,
    builtin,
    devices,
    mooncake,
    nixl,
    nixl_agent,
    nixl_target,
)
from radixshmem_core.cluster.planes.base import Memory, RemoteMemory, checked_blocks
from radixshmem_core.errors import RadixError
from radixshmem_core.store import SlotPoolConfig, SlotStore, SlotStoreConfig

_SCRIPTS = Path(__file__).parents[2] / "scripts"


@dataclasses.dataclass
class Config:
    transfer_backend: str = "auto"
    transfer_dev: tuple[str, ...] = ()
    transfer_protocol: str = ""
    transfer_ip: str = ""
    transfer_port: int = 0
    gid_idx: int = -1


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretends that these packages are installed, and that these libraries are missing."""

    def pretend(*packages: str, without: tuple[str, ...] = ()) -> None:
        def find_spec(name: str) -> object:
            return name if name in packages else None

        def load(name: str) -> None:
            if name in without:
                raise OSError(f"{name}: cannot open shared object file")

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        monkeypatch.setattr(ctypes, "CDLL", load)

    return pretend


@pytest.fixture
def rdma(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Pretends that these RDMA devices are here."""

    def pretend(*names: str) -> None:
        for name in names:
            (tmp_path / name).mkdir()
        monkeypatch.setattr(devices, "_RDMA", tmp_path)

    return pretend


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which planes were opened, instead of opening them."""
    names: list[str] = []

    def stand_in(name: str) -> Callable[..., Any]:
        def make(*arguments: object) -> Any:
            names.append(name)
            if any(getattr(each, "transfer_ip", "") == "192.0.2.1" for each in arguments):
                raise RadixError(f"no {name} at 192.0.2.1")
            return types.SimpleNamespace(name=name)

        return make

    monkeypatch.setattr(mooncake, "MooncakePlane", stand_in("mooncake"))
    monkeypatch.setattr(nixl, "NixlPlane", stand_in("nixl"))
    monkeypatch.setattr(builtin, "BuiltinPlane", stand_in("builtin"))
    return names


@pytest.fixture
def regions(region_name: str) -> Iterator[Any]:
    store = SlotStore.create(SlotStoreConfig(region_name, full=SlotPoolConfig(1, 4096)))
    identity = types.SimpleNamespace(name="/x", hugepage_path="")
    yield types.SimpleNamespace(store=store, identity=identity, index=None)
    store.close()
    SlotStore.destroy(region_name)


def _open(config: Config, regions: Any, address: str = "192.0.2.1") -> tuple[str, str]:
    plane, why = planes.open_plane(config, regions, address, lambda rank: socket.socket())
    return plane.name, why


# ---------------------------------------------------------------- which are usable


@pytest.mark.parametrize(
    ("packages", "usable"),
    [
        ((), ("builtin",)),
        (("nixl_cu12",), ("nixl", "builtin")),
        (("nixl",), ("nixl", "builtin")),
        (("mooncake", "nixl_cu13"), ("mooncake", "nixl", "builtin")),
    ],
)
def test_usable_backends(
    installed: Callable[..., None], packages: tuple[str, ...], usable: tuple[str, ...]
) -> None:
    installed(*packages)
    assert planes.usable_backends() == usable


def test_what_is_missing_comes_with_its_command(installed: Callable[..., None]) -> None:
    installed()
    assert "pip install 'radixshmem[mooncake]'" in planes.why_missing("mooncake")
    assert "scripts/build_mooncake.sh" in planes.why_missing("mooncake")
    assert "pip install --no-deps nixl-cu12" in planes.why_missing("nixl")
    assert "scripts/build_nixl.sh" in planes.why_missing("nixl")
    installed("mooncake", "nixl_cu12", without=("libibverbs.so.1", "libssl.so.3"))
    assert planes.why_missing("mooncake") == (
        "mooncake needs libibverbs.so.1; run: apt-get install libibverbs1"
    )
    assert planes.why_missing("nixl") == "nixl needs libssl.so.3; run: apt-get install libssl3"


def test_asked_for_but_missing(installed: Callable[..., None], regions: Any) -> None:
    installed()
    for backend in ("mooncake", "nixl"):
        with pytest.raises(PlaneMissing, match=f"transfer_backend is {backend}, but .*run: pip"):
            _open(Config(backend), regions)


def test_asked_for(installed: Callable[..., None], opened: list[str], regions: Any) -> None:
    installed("mooncake", "nixl_cu12")
    for backend in planes.BACKENDS:
        assert _open(Config(backend), regions) == (backend, "asked for")
    assert opened == list(planes.BACKENDS)


def test_auto_takes_the_first_usable_one_and_says_why(
    installed: Callable[..., None], opened: list[str], regions: Any
) -> None:
    installed("mooncake", "nixl_cu12")
    assert _open(Config(), regions) == ("mooncake", "auto: the first usable one")
    installed("nixl_cu12")
    name, why = _open(Config(), regions)
    assert name == "nixl"
    assert why.startswith("auto: the first usable one; not mooncake: the package mooncake is not")
    assert opened == ["mooncake", "nixl"]


def test_auto_is_builtin_on_loopback(
    installed: Callable[..., None], regions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others listen on all addresses."""
    installed("mooncake", "nixl")
    opened = types.SimpleNamespace(name="builtin")
    monkeypatch.setattr(planes.builtin, "BuiltinPlane", lambda *_: opened)
    regions.identity = types.SimpleNamespace(name="", hugepage_path="")
    assert _open(Config(), regions, "127.0.0.1") == (
        "builtin",
        "auto: all nodes are on this machine",
    )


def test_auto_goes_on_when_one_does_not_start(
    installed: Callable[..., None], opened: list[str], regions: Any
) -> None:
    installed("mooncake", "nixl_cu12")
    assert _open(Config(transfer_ip="192.0.2.1"), regions) == (
        "builtin",
        "auto: the first usable one; not mooncake: no mooncake at 192.0.2.1; "
        "not nixl: no nixl at 192.0.2.1",
    )
    assert opened == list(planes.BACKENDS)


# ---------------------------------------------------------------- scripts that install them


def _run_script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(_SCRIPTS / name), *arguments],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("backend", ["mooncake", "nixl"])
def test_script_leaves_alone_what_works(backend: str) -> None:
    done = _run_script(f"build_{backend}.sh")
    assert done.stdout.startswith(f"{backend}: nothing to do, {backend}-"), done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("backend", ["mooncake", "nixl"])
def test_script_refuses_what_it_does_not_know(backend: str) -> None:
    assert _run_script(f"build_{backend}.sh", "--fast").returncode == 2
    assert "needs the folder of a checkout" in _run_script(f"build_{backend}.sh", "--source").stderr


# ---------------------------------------------------------------- devices


def test_protocol_follows_the_devices(rdma: Callable[..., None]) -> None:
    rdma()
    assert devices.chosen_protocol(Config()) == "tcp"
    assert devices.chosen_protocol(Config(transfer_dev=("lo",))) == "tcp"
    rdma("mlx5_0", "mlx5_1")
    assert devices.rdma_devices() == ["mlx5_0", "mlx5_1"]
    assert devices.chosen_protocol(Config()) == "rdma"
    assert devices.chosen_protocol(Config(transfer_dev=("mlx5_1:1",))) == "rdma"
    assert devices.chosen_protocol(Config(transfer_dev=("lo",))) == "tcp"
    assert devices.chosen_protocol(Config(transfer_protocol="tcp")) == "tcp"
    assert devices.chosen_protocol(Config(transfer_protocol="rdma")) == "rdma"


def test_devices_that_are_not_here(rdma: Callable[..., None]) -> None:
    rdma()
    with pytest.raises(RadixError, match="there is no RDMA device in"):
        devices.chosen_protocol(Config(transfer_protocol="rdma"))
    rdma("mlx5_0")
    with pytest.raises(RadixError, match=r"names mlx5_7, .* RDMA devices: mlx5_0; .*interfaces: "):
        devices.chosen_protocol(Config(transfer_dev=("mlx5_0", "mlx5_7")))
    with pytest.raises(RadixError, match="names lo, which is not here"):
        devices.chosen_protocol(Config(transfer_protocol="rdma", transfer_dev=("lo",)))


def test_interface_of_an_address() -> None:
    assert devices.interface_of("127.0.0.1") == "lo"
    assert devices.interface_of("192.0.2.254") == ""
    assert devices.interface_of(socket.gethostname()) in ("", "lo")


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (Config(), {"UCX_NET_DEVICES": "lo"}),
        (Config(transfer_protocol="tcp"), {"UCX_NET_DEVICES": "lo", "UCX_TLS": "tcp"}),
        (Config(transfer_dev=("lo",)), {"UCX_NET_DEVICES": "lo"}),
        (
            Config(transfer_port=17000, transfer_dev=("lo",)),
            {"UCX_NET_DEVICES": "lo", "UCX_TCP_PORT_RANGE": "17000-17015"},
        ),
        (Config(transfer_ip="192.0.2.9"), {}),
    ],
)
def test_options_of_ucx(
    monkeypatch: pytest.MonkeyPatch,
    rdma: Callable[..., None],
    config: Config,
    options: dict[str, str],
) -> None:
    rdma()
    environment: dict[str, str] = {}
    monkeypatch.setattr(nixl_agent.os, "environ", environment)
    nixl_agent.set_environment(config, config.transfer_ip or "127.0.0.1")
    assert environment.pop("UCX_LOG_FILE") == "stderr"
    assert environment.pop("UCX_LOG_LEVEL") == "error"
    assert environment.pop("UCX_MODULES") == "^ib"
    assert environment == options


def test_options_of_ucx_with_rdma(
    monkeypatch: pytest.MonkeyPatch, rdma: Callable[..., None]
) -> None:
    rdma("mlx5_0", "mlx5_1")
    environment = {"UCX_LOG_LEVEL": "info"}  # what the user has set stays
    monkeypatch.setattr(nixl_agent.os, "environ", environment)
    nixl_agent.set_environment(
        Config(transfer_dev=("mlx5_0", "mlx5_1"), transfer_protocol="rdma"), ""
    )
    assert environment == {
        "UCX_LOG_LEVEL": "info",
        "UCX_LOG_FILE": "stderr",
        "UCX_TLS": "rc",
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1",
    }


# ---------------------------------------------------------------- first contacts of mooncake


def test_first_contact_without_an_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncake, "_CONTACT_S", 0.05)
    with contextlib.ExitStack() as stack:
        silent, other = (
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)
        )
        waiting, spared = (
            stack.enter_context(socket.create_connection(each.getsockname()))
            for each in (silent, other)
        )
        waiting.settimeout(30)
        answered = threading.Event()
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        watcher = threading.Thread(target=mooncake._watch, args=(endpoint, answered))
        watcher.start()
        assert waiting.recv(1) == b""  # as if the peer had closed it
        answered.set()
        watcher.join()
        spared.sendall(b"still there")
        with other.accept()[0] as arrived:
            assert arrived.recv(11) == b"still there"


def test_ignored_port_is_told(
    monkeypatch: pytest.MonkeyPatch, rdma: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    rdma()
    monkeypatch.setattr(mooncake.os, "environ", environment := {"MC_LOG_LEVEL": "INFO"})
    refusing = types.SimpleNamespace(initialize=lambda *_: -1)
    engine = types.SimpleNamespace(TransferEngine=lambda: refusing)
    monkeypatch.setattr(mooncake.importlib, "import_module", lambda _: engine)
    with pytest.raises(RadixError, match=r"mooncake does not start at 127\.0\.0\.1 over tcp"):
        mooncake._start_engine(Config(transfer_port=17000), "127.0.0.1", Memory(0, 0))
    assert "transfer_port 17000 is ignored: mooncake picks its ports" in caplog.text
    assert environment["MC_FORCE_TCP"] == "1"
    assert environment["MC_LOG_LEVEL"] == "INFO"  # what the user has set stays


@pytest.mark.parametrize("protocol", ["", "rdma"])
def test_mooncake_refuses_a_port_of_a_device(rdma: Callable[..., None], protocol: str) -> None:
    rdma("mlx5_0")
    named = Config(transfer_dev=("mlx5_0:2",), transfer_protocol=protocol)
    with pytest.raises(RadixError, match=r"names mlx5_0:2, but .* without a port; give mlx5_0$"):
        mooncake._device_names(named)
    assert mooncake._device_names(Config(transfer_dev=("mlx5_0",))) == ["mlx5_0"]


# ---------------------------------------------------------------- the process that serves for nixl


def test_nobody_waits_for_a_process_that_starts_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python, silent = tmp_path / "python", tmp_path / "silent"
    python.write_text(f"#!/bin/sh\n[ -e {silent} ] || echo 1 bWU=\nexec cat > /dev/null\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    target = nixl_target.Target("/x", "")
    try:
        assert target.serving() == (1, b"me")
        monkeypatch.setattr(nixl_target, "_START_S", 0.1)
        silent.touch()
        target._process.kill()
        with pytest.raises(RadixError, match="is starting again"):
            eventually(lambda: not target.serving(), "it has ended")
        silent.unlink()
        eventually(lambda: target._serving, "it serves again")
        assert target.serving() == (1, b"me")
    finally:
        target.close()
    with pytest.raises(RadixError, match="has ended"):
        target.serving()


# ---------------------------------------------------------------- metadata and blocks


@pytest.mark.parametrize(
    ("address", "data_bytes"), [(-1, 1), (1, -1), (2**63 - 1, 1), (0, 2**63), (2**64 - 1, 0)]
)
def test_memory_that_cannot_be(address: int, data_bytes: int) -> None:
    metadata = RemoteMemory("nixl", address, data_bytes, b"").encode()
    with pytest.raises(RadixError, match="which no memory has"):
        RemoteMemory.decode("nixl", metadata)


def test_metadata_travels() -> None:
    remote = RemoteMemory("nixl", 4096, 1 << 40, b"\0engine")
    assert RemoteMemory.decode("nixl", remote.encode()) == remote
    with pytest.raises(RadixError, match="moves slots with 'nixl', this server with 'mooncake'"):
        RemoteMemory.decode("mooncake", remote.encode())


def test_blocks_within_both_sides() -> None:
    blocks = checked_blocks(100, 50, [0, 90], [40, 0], [10, 10])
    assert blocks.remote.tolist() == [0, 90]
    assert blocks.local.tolist() == [40, 0]
    with pytest.raises(ValueError, match="block 1: 10 bytes at remote offset 91 are not within"):
        checked_blocks(100, 50, [0, 91], [40, 0], [10, 10])
    with pytest.raises(ValueError, match="block 0: 10 bytes at local offset 41 are not within"):
        checked_blocks(100, 50, [0, 90], [41, 0], [10, 10])
