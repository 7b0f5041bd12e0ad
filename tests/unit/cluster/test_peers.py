# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What a server takes from a peer's description of itself, and how it goes on after a bad one."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from radixshmem_core.cluster import wire
from radixshmem_core.cluster.peer_link import serve_peer
from radixshmem_core.cluster.peers import Peers
from radixshmem_core.cluster.registry import Member

_DEADLINE_S = 10.0
LAYOUT = {
    **{"directory_lines": 64, "arena_units": 1, "side_blocks": 0, "side_bytes": 0},
    **{"table_lines": 8, "table_lines_max": 8},
}
GOOD: dict[str, Any] = {
    **{"version": "1", "node": "n1", "rank": 1, "instance": 5, "mode": "ready", "digest": 7},
    **{"incarnation": 9, "layout": LAYOUT},
}


def _encoded(**fields: Any) -> bytes:
    """A `described` as a peer may send it."""
    mine = {"protocol": wire.PEER_PROTOCOL, **GOOD, **fields}
    return msgspec.msgpack.encode({"reply": "described", "mine": mine})


def test_a_good_description_is_taken() -> None:
    reply = wire.replies.decode(_encoded())
    assert isinstance(reply, wire.Described)
    assert reply.mine.layout == LAYOUT


@pytest.mark.parametrize(
    "fields",
    [
        {"incarnation": -1},
        {"digest": -1},
        {"rank": -1},
        {"rank": 1 << 40},
        {"epoch": -5},
        {"served": -1},
        {"reads": -1},
        {"layout": {}},
        {"layout": {**LAYOUT, "table_lines": -1}},
        {"layout": {**LAYOUT, "directory_lines": (1 << 63) - 1}},
        {"layout": {**LAYOUT, "arena_offset": -1}},
        {"pools": {"full": (0, -1, 1)}},
        {"pools": {"full": (0, 1)}},
    ],
)
def test_a_description_that_cannot_be_is_no_message(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        wire.replies.decode(_encoded(**fields))


def test_another_version_may_have_another_layout() -> None:
    reply = wire.replies.decode(_encoded(protocol=99, layout={"new": 1 << 60}))
    assert isinstance(reply, wire.Described)


def _serve(answer: Any) -> Any:
    async def dial(address: str, port: int, channel: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=theirs)
        tasks.append(asyncio.create_task(serve_peer(reader, writer, answer)))
        return ours

    tasks: list[asyncio.Task[None]] = []
    return dial


@pytest.mark.parametrize("fault", ["at the peer", "here"])
def test_a_peer_is_asked_again_whatever_went_wrong(fault: str) -> None:
    told: list[bool] = []

    async def answer(_: wire.PeerRequest) -> wire.PeerReply:
        if fault == "at the peer" and len(told) < 2:
            told.append(True)
            bad = msgspec.structs.replace(wire.Description(**GOOD), layout={"side_bytes": -1})
            return wire.Described(mine=bad)
        return wire.Described(mine=wire.Description(**GOOD))

    def changed() -> None:
        if fault == "here" and not told:
            told.append(True)
            raise RuntimeError("something that nobody has thought of")

    async def steps() -> None:
        me = wire.Description(**{**GOOD, "node": "n0", "rank": 0, "instance": 4})
        peers = Peers(_serve(answer), lambda: me, changed)
        member = Member(node="n1", rank=1, instance=5, address="", port=1, joined_s=0.0)
        peers.set_members([member], own_instance=4)
        peer = peers.of_rank(1)
        assert peer is not None
        end = asyncio.get_running_loop().time() + _DEADLINE_S
        while not told or not peer.reachable:
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.002)
        assert not peers._tasks[5].done()
        await peers.close()

    asyncio.run(steps())
