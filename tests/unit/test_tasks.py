# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Tasks that nobody waits for."""

from __future__ import annotations

import asyncio

import pytest

from radixshmem_core.tasks import Tasks


def test_an_error_is_logged_as_that_of_what_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("no such thing")

    async def run() -> None:
        await asyncio.wait([Tasks("the work").start(fail())])
        await asyncio.sleep(0)

    asyncio.run(run())
    (record,) = caplog.records
    assert record.getMessage() == "the work failed"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no such thing"


def test_cancelled_all_have_ended_and_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def last(name: str) -> None:
        try:
            await asyncio.Future()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async def run() -> None:
        tasks = Tasks("the work")
        for name in "ab":
            tasks.start(last(name))
        await asyncio.sleep(0)
        await tasks.cancel()
        assert sorted(ended) == ["a", "b"]
        await tasks.cancel()

    asyncio.run(run())
    assert not caplog.records
