# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Both ends of a control channel between two servers, and what is no message of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from radixshmem_core.cluster import wire
from radixshmem_core.cluster.dialer import PeerUnreachable
from radixshmem_core.cluster.peer_link import PeerLink, serve_peer
from radixshmem_core.errors import RadixError
from radixshmem_core.rpc import ProtocolError

Answer = Callable[[wire.PeerRequest], Awaitable[wire.PeerReply]]
DEADLINE_S = 10.0


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 4 * DEADLINE_S))


async def by_number(request: wire.PeerRequest) -> wire.PeerReply:
    """Lease n is granted with n blocks, the earlier the larger n; 13 is refused."""
    assert isinstance(request, wire.LeaseEnd)
    if request.lease == 13:
        raise RadixError("no thirteenth lease")
    await asyncio.sleep(0.01 / request.lease)
    return wire.Leased(lease=request.lease, common_hit=request.lease)


class Ends:
    """A link, and the server's end of each connection that it made."""

    def __init__(self, answer: Answer = by_number) -> None:
        self._answer = answer
        self.served: list[asyncio.Task[None]] = []
        self.link = PeerLink("n1", self._dial)

    async def _dial(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=theirs)
        self.served.append(asyncio.create_task(serve_peer(reader, writer, self._answer)))
        return ours

    async def close(self) -> None:
        await self.link.close()
        await asyncio.wait_for(asyncio.gather(*self.served, return_exceptions=True), DEADLINE_S)


def test_each_of_many_requests_gets_its_own_reply() -> None:
    async def check() -> None:
        ends = Ends()
        asked = [ends.link.ask(wire.LeaseEnd(lease=n), DEADLINE_S) for n in range(1, 13)]
        replies = await asyncio.gather(*asked)
        assert [r.common_hit for r in replies if isinstance(r, wire.Leased)] == [*range(1, 13)]
        assert len(ends.served) == 1
        await ends.close()

    run(check())


def test_a_refusal_is_raised_with_its_words_and_the_connection_stays() -> None:
    async def check() -> None:
        ends = Ends()
        with pytest.raises(RadixError, match="peer n1: no thirteenth lease"):
            await ends.link.ask(wire.LeaseEnd(lease=13), DEADLINE_S)
        assert isinstance(await ends.link.ask(wire.LeaseEnd(lease=1), DEADLINE_S), wire.Leased)
        assert len(ends.served) == 1
        await ends.close()

    run(check())


def test_a_peer_that_is_silent_or_goes_away_is_unreachable_and_asked_anew() -> None:
    async def check() -> None:
        silent = asyncio.Event()

        async def wait(_: wire.PeerRequest) -> wire.PeerReply:
            await silent.wait()
            return wire.Accepted()

        ends = Ends(wait)
        lost = asyncio.Event()
        ends.link.lost = lost.set
        with pytest.raises(PeerUnreachable, match=r"n1 did not answer LeaseEnd within 0\.5 s"):
            await ends.link.ask(wire.LeaseEnd(lease=1), 0.5)
        asked = asyncio.ensure_future(ends.link.ask(wire.LeaseEnd(lease=2), DEADLINE_S))
        await asyncio.sleep(0)
        ends.served[0].cancel()
        with pytest.raises(PeerUnreachable, match="n1 went away"):
            await asked
        await asyncio.wait_for(lost.wait(), DEADLINE_S)
        silent.set()
        assert await ends.link.ask(wire.LeaseEnd(lease=3), DEADLINE_S) == wire.Accepted()
        assert len(ends.served) == 2
        await ends.close()

    run(check())


async def said(garbage: bytes) -> None:
    """Serve a peer that says this, and nothing more."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours:
        ours.sendall(garbage)
    reader, writer = await asyncio.open_connection(sock=theirs)
    await serve_peer(reader, writer, by_number)


@pytest.mark.parametrize(
    ("garbage", "message"),
    [
        (b"\x08\0\0", "ended inside a message"),
        (struct.pack("<II", 100, 1) + b"short", "ended inside a message"),
        (struct.pack("<II", 3, 1), "a peer frame of 3 bytes"),
        (struct.pack("<II", wire.MAX_FRAME_BYTES + 1, 1), f"{wire.MAX_FRAME_BYTES + 1} bytes"),
        (struct.pack("<II", 8, 1) + b"\xc1\xc1\xc1\xc1", "not a request of the peer protocol"),
        (struct.pack("<II", 4, 1), "not a request of the peer protocol"),
        (wire.encode(1, wire.Accepted()), "not a request of the peer protocol"),
    ],
    ids=["header cut", "body cut", "too short", "too long", "not msgpack", "empty", "a reply"],
)
def test_what_is_no_request_ends_the_connection_with_a_reason(garbage: bytes, message: str) -> None:
    async def check() -> None:
        with pytest.raises(ProtocolError, match=message):
            await asyncio.wait_for(said(garbage), DEADLINE_S)

    run(check())


def test_random_and_mutated_bytes_end_a_connection_and_nothing_else() -> None:
    async def check() -> None:
        rng = random.Random(7)
        good = wire.encode(1, wire.LeaseEnd(lease=1))
        for number in range(300):
            bytes_said = bytearray(good if number % 2 else rng.randbytes(rng.randrange(64)))
            for _ in range(rng.randrange(4)):
                if bytes_said:
                    bytes_said[rng.randrange(len(bytes_said))] = rng.randrange(256)
            with contextlib.suppress(ProtocolError):
                await asyncio.wait_for(said(bytes(bytes_said)), DEADLINE_S)

    run(check())
