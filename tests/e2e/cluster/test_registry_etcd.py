# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What only etcd can do to a registry: outages, restarts, users, certificates."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from e2e.cluster.backends import SHORT_S, EtcdBackend, kept
from e2e.cluster.etcd import EtcdServer
from e2e.harness import eventually
from etcd3gw.client import Etcd3Client

from radixshmem_core.cluster.etcd_registry import EtcdRegistry
from radixshmem_core.cluster.registry import (
    Member,
    Registry,
    RegistryOptions,
    RegistryUnavailable,
    open_registry,
)
from radixshmem_core.errors import RadixError

DEAD = "127.0.0.1:1"  # nothing listens there


@pytest.fixture
def backend(etcd: EtcdServer) -> Iterator[EtcdBackend]:
    made = EtcdBackend(etcd)
    yield made
    made.close()


def joined(backend: EtcdBackend, node: str = "a", instance: int = 1) -> Registry:
    registry = backend.open()
    registry.join(node, instance, "127.0.0.1", 1)
    return registry


def test_a_stopped_etcd_is_unavailable_and_a_restart_heals(
    backend: EtcdBackend, etcd: EtcdServer
) -> None:
    a = joined(backend)
    before = a.members()
    etcd.stop()
    for call in (a.renew, a.members, a.leave, lambda: a.raise_epoch("m")):
        with pytest.raises(RegistryUnavailable, match=r"127\.0\.0\.1:\d+ answers.*--registry"):
            call()
    with pytest.raises(RegistryUnavailable):
        backend.open().join("b", 2, "127.0.0.1", 2)
    etcd.start()
    assert before[0].rank == 0
    assert a.join("a", 1, "127.0.0.1", 1).rank == 0
    assert a.renew()
    assert [m.node for m in backend.open().members()] == ["a"]


def test_a_registration_outlives_a_short_outage(backend: EtcdBackend, etcd: EtcdServer) -> None:
    a = joined(backend)
    etcd.stop()
    etcd.start()
    assert a.renew()
    assert [m.node for m in a.members()] == ["a"]


def test_every_call_on_a_frozen_etcd_has_a_deadline(backend: EtcdBackend, etcd: EtcdServer) -> None:
    backend.ttl_s = SHORT_S
    a = joined(backend)
    etcd.freeze()
    try:
        with ThreadPoolExecutor(4) as pool:
            begin = time.monotonic()
            fresh = backend.open()
            asked = [
                pool.submit(a.renew),
                pool.submit(fresh.members),
                pool.submit(backend.open().join, "b", 2, "127.0.0.1", 2),
                pool.submit(backend.open().raise_epoch, "m"),
            ]
            for call in asked:
                with pytest.raises(RegistryUnavailable, match="answers"):
                    call.result(20)
            assert not a.wait_change(0.2)
        assert time.monotonic() - begin < 10
    finally:
        etcd.thaw()
    eventually(lambda: a.members() == [], "the lease ran out")
    assert not a.renew()


def test_a_lease_that_ran_out_is_noticed(backend: EtcdBackend) -> None:
    backend.ttl_s = SHORT_S
    a, b = joined(backend), backend.open()
    eventually(lambda: b.members() == [], "the lease ran out")
    assert not a.renew()
    assert a.join("a", 1, "127.0.0.1", 1).rank == 0
    with kept(a):
        assert [m.node for m in b.members()] == ["a"]


def test_a_wait_works_after_a_restart(backend: EtcdBackend, etcd: EtcdServer) -> None:
    a, b = joined(backend), joined(backend, "b", 2)
    with ThreadPoolExecutor(1) as pool:
        a.members()
        waiting = pool.submit(a.wait_change, 1.0)
        etcd.stop()
        assert not waiting.result()  # silence is no error
        assert not a.wait_change(0.2)
        etcd.start()
        a.members()
        waiting = pool.submit(a.wait_change, 20.0)
        b.leave()
        assert waiting.result()
    assert [m.node for m in a.members()] == ["a"]


def test_another_endpoint_takes_over(etcd: EtcdServer) -> None:
    registry = open_registry(f"etcd://{DEAD},127.0.0.1:{etcd.port}", cluster_id="c")
    registry.join("a", 1, "127.0.0.1", 1)
    assert registry.renew()
    assert registry.wait_change(0.2)  # nothing was listed yet
    registry.close()
    dead = open_registry(f"etcd://{DEAD},[::1]:1")
    with pytest.raises(RegistryUnavailable, match=r"127\.0\.0\.1:1, \[::1\]:1 answers"):
        dead.members()
    dead.close()


def test_a_claim_made_on_old_knowledge_fails(etcd: EtcdServer, backend: EtcdBackend) -> None:
    slow = EtcdRegistry([f"127.0.0.1:{etcd.port}"], backend.cluster_id, 30, RegistryOptions())
    lease = slow._grant()

    def member(node: str, rank: int) -> Member:
        return Member(node=node, rank=rank, instance=7, address="::1", port=1, joined_s=0.0)

    gone = joined(backend, "gone", 2)
    gone.leave()
    nodes, owners = slow._nodes_and_owners()
    assert (nodes, list(owners)) == ({}, [0])
    joined(backend, "here", 1)
    assert not slow._claim(member("here", 5), lease, None, None)  # the name was taken
    assert not slow._claim(member("x", 1), lease, None, None)  # the rank was taken
    joined(backend, "gone", 3)
    assert not slow._claim(member("x", 0), lease, None, owners[0])  # its owner came back
    assert slow._claim(member("x", 2), lease, None, None)
    slow.close()


def test_clusters_do_not_see_each_other(etcd: EtcdServer) -> None:
    for cluster in ("", "one", "one1"):
        registry = open_registry(etcd.url, cluster_id=cluster, ttl_s=30)
        assert registry.join("a", 1, "127.0.0.1", 1).rank == 0
        assert len(registry.members()) == 1
        registry.close()


def test_records_of_another_format_are_no_members(backend: EtcdBackend, etcd: EtcdServer) -> None:
    a = joined(backend)
    root = f"/radixshmem/{backend.cluster_id}"
    client = Etcd3Client("127.0.0.1", etcd.port, api_path="/v3/")
    for key, value in (("node/x", "{}"), ("node/y", "\xff"), ("rank/z", "a"), ("epoch/m", "?")):
        client.put(f"{root}/{key}", value)
    client.session.close()
    with kept(a):
        assert [m.node for m in a.members()] == ["a"]
        assert joined(backend, "b", 2).members()[1].rank == 1
        assert a.raise_epoch("m") == 1


@pytest.fixture
def password(etcd: EtcdServer, tmp_path: Path) -> str:
    """etcd asks for users; `radix` has the password in this file."""
    client = Etcd3Client("127.0.0.1", etcd.port, api_path="/v3/")

    def post(path: str, **body: object) -> None:
        client.post(client.get_url(f"/auth/{path}"), json=body)

    for user in ("root", "radix"):
        post("user/add", name=user, password="s3cret words")
    post("role/add", name="radix")
    key, end = "L3JhZGl4c2htZW0v", "L3JhZGl4c2htZW0w"  # /radixshmem/ and what comes after it
    post("role/grant", name="radix", perm={"permType": 2, "key": key, "range_end": end})
    post("user/grant", user="radix", role="radix")
    post("user/grant", user="root", role="root")
    post("enable")
    client.session.close()
    path = tmp_path / "password"
    path.write_text("s3cret words\n")
    return str(path)


def test_a_user_with_a_password(etcd: EtcdServer, password: str, tmp_path: Path) -> None:
    options = RegistryOptions(etcd_user="radix", etcd_password_file=password)
    registry = open_registry(etcd.url, ttl_s=30, options=options)
    assert registry.join("a", 1, "127.0.0.1", 1).rank == 0
    assert len(registry.members()) == 1
    etcd.stop()  # its tokens are gone with it
    etcd.start()
    assert registry.renew()
    registry.members()
    assert isinstance(registry, EtcdRegistry)
    registry._etcd._session.headers["Authorization"] = "ended.1"
    assert registry.wait_change(20.0)  # it was refused, so look
    registry.members()
    assert not registry.wait_change(0.2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(registry.wait_change, 20.0)
        registry.raise_epoch("m")
        assert waiting.result()
    registry.close()

    wrong = tmp_path / "wrong"
    wrong.write_text("something else")
    for refused in (
        RegistryOptions(),
        RegistryOptions(etcd_user="radix", etcd_password_file=str(wrong)),
    ):
        registry = open_registry(etcd.url, options=refused)
        with pytest.raises(RadixError, match=r"refuses: .*--etcd-user") as caught:
            registry.members()
        assert not isinstance(caught.value, RegistryUnavailable)
        registry.close()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """A certificate for 127.0.0.1, signed by itself, and its key."""
    crt, key = str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")
    command = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2"
    subject = ["-subj", "/CN=radix", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command.split(), *subject, "-out", crt, "-keyout", key], check=True, capture_output=True
    )
    return crt, key


def test_tls_with_certificates_on_both_sides(tmp_path: Path, certificate: tuple[str, str]) -> None:
    crt, key = certificate
    asked = ["--cert-file", crt, "--key-file", key, "--trusted-ca-file", crt, "--client-cert-auth"]
    etcd = EtcdServer(tmp_path, tls=asked)
    try:
        ours = RegistryOptions(etcd_ca_file=crt, etcd_cert_file=crt, etcd_key_file=key)
        registry = open_registry(etcd.url, ttl_s=30, options=ours)
        assert registry.join("a", 1, "127.0.0.1", 1).rank == 0
        assert registry.wait_change(0.2)  # nothing was listed yet
        registry.close()
        for refused in (RegistryOptions(), RegistryOptions(etcd_ca_file=crt)):
            registry = open_registry(etcd.url, options=refused)
            with pytest.raises(RadixError):
                registry.members()
            registry.close()
    finally:
        etcd.stop()


def test_a_missing_package_is_named() -> None:
    program = """
import sys
sys.modules["etcd3gw"] = None
from radixshmem_core.cluster.registry import open_registry
open_registry("etcd://localhost:1")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "RadixError: an etcd:// registry needs the package etcd3gw" in done.stderr
    assert "pip install 'radixshmem[etcd]'" in done.stderr
