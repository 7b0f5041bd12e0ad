# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import logging

import pytest

from radixshmem_core.cluster import addresses
from radixshmem_core.cluster.addresses import is_loopback, own_address

AWAY = "etcd://127.0.0.1:2379,10.0.0.1:2379"
HERE = "etcd://127.0.0.1:2379,[::1]:2379,localhost:2379"


@pytest.mark.parametrize("registry", [HERE, "file:///tmp/x"])
def test_one_machine_needs_no_address(registry: str) -> None:
    assert own_address(registry, "", "") == "127.0.0.1"


@pytest.mark.parametrize("registry", [AWAY, "etcd://etcd.example:1", "etcd://[fd00::1]:2379"])
def test_several_machines_need_one(registry: str) -> None:
    with pytest.raises(ValueError, match=r"give --rpc-address or --rpc-interface"):
        own_address(registry, "", "")


@pytest.mark.parametrize(
    ("given", "address"),
    [("10.0.0.10", "10.0.0.10"), ("fd00::1", "fd00::1"), ("localhost", "127.0.0.1")],
)
def test_an_address_is_taken_as_it_is(given: str, address: str) -> None:
    assert own_address(HERE, given, "") in (address, "::1" if given == "localhost" else address)


@pytest.mark.parametrize("given", ["0.0.0.0", "::", "0", "224.0.0.1", "ff02::1"])
def test_an_address_that_is_not_one_is_refused(given: str) -> None:
    for registry in (HERE, AWAY):
        with pytest.raises(ValueError, match=r"which peers cannot reach.*--rpc-address"):
            own_address(registry, given, "")


@pytest.mark.parametrize("given", ["no such host", "10.0.0.256.1", "a" * 300])
def test_a_name_without_an_address_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"rpc_address is .*--rpc-address"):
        own_address(HERE, given, "")


def test_the_interface_wins() -> None:
    assert own_address(HERE, "10.0.0.10", "lo") == "127.0.0.1"


def test_an_unknown_interface_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'eth77'.* has .*lo.*--rpc-interface"):
        own_address(HERE, "", "eth77")


def test_an_interface_may_have_ipv6_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_ipv4_of", lambda name: "")
    with pytest.raises(ValueError, match="'lo', which has no address"):
        own_address(HERE, "", "lo")  # ::1 is not a global address
    monkeypatch.setattr(addresses, "_ipv6_of", lambda name: "fd00::7")
    assert own_address(AWAY, "", "lo") == "fd00::7"


def test_the_addresses_of_loopback_are_read() -> None:
    assert addresses._ipv4_of("lo") == "127.0.0.1"
    assert addresses._ipv6_of("lo") == ""  # ::1 is not a global address


def test_a_loopback_address_for_several_machines_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert own_address(HERE, "127.0.0.2", "") == "127.0.0.2"
        assert not caplog.records
        assert own_address(AWAY, "127.0.0.2", "") == "127.0.0.2"
    assert "cannot reach 127.0.0.2" in caplog.text


def test_what_loopback_is() -> None:
    assert all(is_loopback(a) for a in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback(a) for a in ("10.0.0.1", "::", "0.0.0.0", "fd00::1", "node1"))
