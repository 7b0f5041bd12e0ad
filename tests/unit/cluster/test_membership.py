# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What a server makes of a registry that refuses, breaks, or lists somebody else in its place."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from radixshmem_core.cluster import membership as module
from radixshmem_core.cluster.membership import Membership
from radixshmem_core.cluster.registry import Member, NameTaken
from radixshmem_core.errors import RadixError
from radixshmem_core.tasks import cancel_all

_DEADLINE_S = 10.0


def _member(instance: int) -> Member:
    return Member(node="a", rank=0, instance=instance, address="127.0.0.1", port=1, joined_s=0)


class Registry:
    """Lists one member; raises `trouble` at each call while there is any."""

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.holder = _member(1)
        self.renewed = self.listed = self.left = 0

    def _check(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    def join(self, node: str, instance: int, address: str, port: int) -> Member:
        self._check()
        if self.holder.instance != instance:
            raise NameTaken("the node name 'a' is taken")
        return self.holder

    def renew(self) -> bool:
        self._check()
        self.renewed += 1
        return self.holder.instance == 1

    def members_and_epochs(self) -> tuple[list[Member], dict[str, int]]:
        self._check()
        self.listed += 1
        return [self.holder], {}

    def wait_change(self, timeout_s: float) -> bool:
        self._check()
        return True

    def leave(self) -> None:
        self._check()
        self.left += 1


async def _until(done: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not done():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(poll(), _DEADLINE_S)


@contextlib.asynccontextmanager
async def _running(registry: Registry) -> AsyncIterator[Membership]:
    membership = Membership(
        registry, asyncio.to_thread, "a", 1, ("127.0.0.1", 1), lambda *_: None, lease_s=0.03
    )
    await membership.join()
    task = asyncio.create_task(membership.run())
    try:
        yield membership
        assert not task.done()
    finally:
        await cancel_all([task])


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)


@pytest.mark.parametrize(
    "trouble",
    [RadixError("etcd refuses: permission denied"), OSError(20, "Not a directory"), KeyError("x")],
)
def test_any_trouble_is_told_and_over_when_it_is_repaired(
    trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps() -> None:
        registry = Registry()
        async with _running(registry) as membership:
            registry.trouble = trouble
            await _until(lambda: membership.last_error == str(trouble))
            registry.trouble = None
            await _until(lambda: not membership.last_error)
            renewed, listed = registry.renewed, registry.listed
            await _until(lambda: registry.renewed > renewed and registry.listed > listed)

    with caplog.at_level(logging.WARNING):
        asyncio.run(steps())
    assert "cannot be used, the last members stay" in caplog.text


def test_trouble_with_leaving_is_told_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def steps() -> None:
        registry = Registry()
        async with _running(registry) as membership:
            registry.trouble = RadixError("etcd refuses")
            await membership.leave()

    asyncio.run(steps())
    assert "node a could not leave the registry: etcd refuses" in caplog.text


def test_a_name_taken_meanwhile_is_told_once_and_until_it_is_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def steps() -> None:
        registry = Registry()
        async with _running(registry) as membership:
            registry.holder = _member(2)
            await _until(lambda: "taken" in membership.last_error)
            seen = set()
            for _ in range(5):
                listed = registry.listed
                await _until(lambda n=listed: registry.listed > n)  # type: ignore[misc]
                seen.add(membership.last_error)
            assert seen == {"the node name 'a' is taken"}
            registry.holder = _member(1)
            await _until(lambda: not membership.last_error)

    asyncio.run(steps())
    assert caplog.text.count("is taken") == 1
