# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""RDMA devices by name, the rails of the built-in data plane, and what a server does with both."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixshmem_core.cluster import rdma, verbs
from radixshmem_core.cluster.planes import rails
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import RadixError, ServerNotReady
from radixshmem_core.server import RadixServer


class Device:
    """Stands for _core.VerbsDevice."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.destinations: list[memoryview] = []

    def add_destination(self, memory: memoryview) -> None:
        self.destinations.append(memory)

    def describe(self) -> str:
        return f"{self.name} as it is"


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretends that these devices are here; those that are `down` do not open."""

    def pretend(*names: str, down: tuple[str, ...] = ()) -> None:
        def open_device(name: str, gid_idx: int) -> Device:
            if name not in names:
                raise ValueError(f"there is no RDMA device {name}")
            if name in down:
                raise ServerNotReady(f"port 1 of RDMA device {name} is down")
            if gid_idx > 3:
                raise ValueError(f"gid_idx {gid_idx} is no RoCE v2 address")
            return Device(name)

        monkeypatch.setattr(rails, "open_device", open_device)
        monkeypatch.setattr(verbs, "open_device", open_device)
        monkeypatch.setattr(rails, "rdma_devices", lambda: sorted(names))
        monkeypatch.setattr(rails, "distance_to", lambda name: 10)

    return pretend


def config(*devices: str, backend: str = "builtin", **more: Any) -> ServerConfig:
    options = {"data_bytes": "1M", "transfer_backend": backend, "transfer_dev": devices, **more}
    return ServerConfig("/x", registry="file:///x", **options)


# ---------------------------------------------------------------- one device


def test_a_device_that_is_not_here_is_an_error_that_says_what_is() -> None:
    says = "verbs cannot be used|there is no RDMA device no_such_device; here are:"
    with pytest.raises((ServerNotReady, ValueError), match=says):
        rdma.open_device("no_such_device", -1)


@pytest.mark.parametrize("name", ["mlx5_0:0", "mlx5_0:256", "mlx5_0:one", "mlx5_0:1:1"])
def test_what_names_no_port_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="names no port of an RDMA device"):
        rdma.open_device(name, -1)


def test_a_port_is_given_behind_a_colon(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[Any, ...]] = []

    class Core:
        class VerbsDevice:
            @staticmethod
            def open(*arguments: Any) -> None:
                opened.append(arguments)

    monkeypatch.setattr(rdma, "_core", Core)
    rdma.open_device("mlx5_0:2", 3)
    rdma.open_device("mlx5_bond_0", -1)
    assert opened == [("mlx5_0", 3, 2), ("mlx5_bond_0", -1, 1)]


def test_near_devices_are_those_of_the_numa_nodes_of_our_cpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for node, distances, cpu in ((0, "10 21", 0), (1, "21 10", 4)):
        (tmp_path / f"node{node}" / f"cpu{cpu}").mkdir(parents=True)
        (tmp_path / f"node{node}" / "distance").write_text(distances + "\n")
    for device, node in (("mlx5_0", 0), ("mlx5_1", 1), ("bond", -1)):
        (tmp_path / device / "device").mkdir(parents=True)
        (tmp_path / device / "device" / "numa_node").write_text(f"{node}\n")
    monkeypatch.setattr(rdma, "_RDMA", tmp_path)
    monkeypatch.setattr(rdma, "_NODES", tmp_path)
    monkeypatch.setattr(rdma.os, "sched_getaffinity", lambda _: {4, 5})
    named = ("mlx5_0", "mlx5_1:2", "bond", "unknown")
    assert [rdma.distance_to(name) for name in named] == [21, 10, 10, 10]


# ---------------------------------------------------------------- rails


def test_rails_are_numbered_behind_the_index_device_nearest_first(
    present: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    present("far", "near", "also_near")
    monkeypatch.setattr(rails, "distance_to", lambda name: 21 if name == "far" else 10)
    slots = memoryview(bytearray(8))
    found = rails.open_rails(config("far", "near", "also_near"), slots, first_number=1)
    assert [(rail.name, rail.number) for rail in found] == [
        ("near", 1),
        ("also_near", 2),
        ("far", 3),
    ]
    assert all(rail.device.destinations == [slots] for rail in found)  # type: ignore[attr-defined]


def test_a_dead_rail_is_left_out_and_told(
    present: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    present("mlx5_0", "mlx5_1", down=("mlx5_0",))
    found = rails.open_rails(config("mlx5_0", "mlx5_1"))
    assert [(rail.name, rail.number) for rail in found] == [("mlx5_1", 0)]
    assert "transfer_dev mlx5_0 is left out: port 1 of RDMA device mlx5_0 is down" in caplog.text


def test_no_rail_that_works_ends_a_start_but_not_a_server_that_runs(
    present: Callable[..., None],
) -> None:
    present("mlx5_0", down=("mlx5_0",))
    with pytest.raises(RadixError, match=r"transfer_dev works: mlx5_0: port 1 .* is down"):
        rails.open_rails(config("mlx5_0"))
    assert rails.open_rails(config("mlx5_0"), memoryview(b"")) == []


def test_a_wrong_name_or_gid_is_no_dead_rail(present: Callable[..., None]) -> None:
    present("mlx5_0")
    with pytest.raises(ValueError, match="no RDMA device mlx5_7"):
        rails.open_rails(config("mlx5_0", "mlx5_7"))
    with pytest.raises(ValueError, match="gid_idx 9"):
        rails.open_rails(config("mlx5_0", gid_idx=9))


@pytest.mark.parametrize(
    ("options", "opened"),
    [
        (config(), []),
        (config("mlx5_0", transfer_protocol="tcp"), []),
        (config("mlx5_0", backend="nixl"), []),
        (config("mlx5_0", "lo", backend="auto"), ["mlx5_0"]),
        (config("mlx5_0", transfer_protocol="rdma"), ["mlx5_0"]),
    ],
)
def test_rails_are_the_rdma_devices_of_transfer_dev(
    present: Callable[..., None], options: ServerConfig, opened: list[str], rdma_tree: None
) -> None:
    present("mlx5_0")
    assert [rail.name for rail in rails.open_rails(options)] == opened


@pytest.fixture
def rdma_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    from radixshmem_core.cluster.planes import devices

    monkeypatch.setattr(devices, "rdma_devices", lambda: ["mlx5_0"])


# ---------------------------------------------------------------- a server


class Responder:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.served: list[str] = []

    def serve_verbs(self, devices: list[Device]) -> None:
        if self.error is not None:
            raise self.error
        self.served = [device.name for device in devices]


def test_peers_read_through_the_index_device_and_then_the_rails(
    present: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    present("mlx5_bond_0", "mlx5_0", "mlx5_1")
    caplog.set_level(logging.INFO)
    server = verbs.Verbs(config("mlx5_0", "mlx5_1", index_dev="mlx5_bond_0"))
    server.open()
    assert "/x: index_dev is mlx5_bond_0 as it is" in caplog.text
    assert "/x: transfer_dev has mlx5_1 as it is" in caplog.text
    found = server.open_rails(memoryview(bytearray(8)))
    assert [rail.number for rail in found] == [1, 2]
    responder = Responder()
    server.serve(responder, found)  # type: ignore[arg-type]
    assert responder.served == ["mlx5_bond_0", "mlx5_0", "mlx5_1"]
    assert server.report() == {"devices": [f"{n} as it is" for n in responder.served], "error": ""}


def test_memory_that_cannot_be_registered_is_reported(
    present: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    present("mlx5_0")
    server = verbs.Verbs(config(index_dev="mlx5_0"))
    server.open()
    server.serve(Responder(RadixError("raise the memlock limit")), [])  # type: ignore[arg-type]
    assert server.report() == {"devices": [], "error": "raise the memlock limit"}
    assert "peers cannot read over RDMA: raise the memlock limit" in caplog.text


def test_nothing_is_served_without_a_device() -> None:
    server = verbs.Verbs(config())
    server.open()
    responder = Responder(AssertionError("served"))
    server.serve(responder, server.open_rails(memoryview(b"")))  # type: ignore[arg-type]
    assert server.report() == {"devices": [], "error": ""}


@pytest.mark.parametrize("option", ["index_dev", "transfer_dev"])
def test_a_server_with_a_device_that_is_not_here_does_not_start(
    option: str, region_name: str, tmp_path: Path
) -> None:
    options = dataclasses.replace(
        config(), name=region_name, registry=f"file://{tmp_path}", **{option: "no_such_device"}
    )
    with pytest.raises((RadixError, ValueError), match="no_such_device"):
        RadixServer(options).start()
    assert not Path(f"/dev/shm{region_name}").exists()


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"index_transport": "verbs"}, "--index-dev"),
        ({"transfer_protocol": "rdma"}, "--transfer-dev"),
    ],
)
def test_verbs_alone_without_a_device_is_refused(options: dict[str, Any], flag: str) -> None:
    with pytest.raises(ValueError, match=flag):
        config(**options)
