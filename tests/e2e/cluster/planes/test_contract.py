# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What every data plane must do, with processes that own a region each."""

from __future__ import annotations

import base64
import signal

import pytest

from .conftest import FIRST, SECOND, Trio
from .nodes import SLOTS_BYTES, Blocks, Case, Failed, Node, Start, spread

BRIEFLY_S = 0.2  # a look at what must not be over
MIB = 1 << 20
THIRD = (3, 103)

BIG: Blocks = [[i * MIB for i in range(8)], [(15 - i) * MIB for i in range(8)], [MIB] * 8]


# ---------------------------------------------------------------- reading


def test_name_and_reason(case: Case, trio: Trio) -> None:
    said = trio.first.do("metadata")
    assert (said["name"], said["reason"]) == (case.backend, "asked for")


def test_many_small_blocks_arrive_where_they_belong(trio: Trio) -> None:
    trio.reader.fetch(FIRST, trio.first, spread(400, 1024, 4096))


def test_blocks_of_any_size_at_the_edges(trio: Trio) -> None:
    end = SLOTS_BYTES
    trio.reader.fetch(
        FIRST, trio.first, [[0, end - 1, end - 4097, 7], [end - 1, 0, 1, 4099], [1, 1, 4097, 3]]
    )


def test_large_blocks(trio: Trio) -> None:
    trio.reader.fetch(SECOND, trio.second, BIG)


def test_whole_memory_in_one_block(trio: Trio) -> None:
    trio.reader.fetch(FIRST, trio.first, [[0], [0], [SLOTS_BYTES]])


def test_no_block_is_done_at_once(trio: Trio) -> None:
    assert trio.reader.finish(trio.reader.read(FIRST, [[], [], []]), 0) == "done"


def test_transfers_in_flight_from_two_peers(trio: Trio) -> None:
    blocks = spread(240, 2048, 4096, seed=3)
    parts = [[column[at : at + 20] for column in blocks] for at in range(0, 240, 20)]
    owners = [(FIRST, trio.first), (SECOND, trio.second)] * 6
    transfers = [
        trio.reader.read(peer, part) for (peer, _), part in zip(owners, parts, strict=True)
    ]
    assert {trio.reader.finish(transfer) for transfer in reversed(transfers)} == {"done"}
    for (_, owner), part in zip(owners, parts, strict=True):
        trio.reader.expect(owner, part)
    assert trio.reader.wrong_bytes() == 0


def test_node_reads_while_it_is_read(trio: Trio, start: Start) -> None:
    node = start(10)
    trio.reader.connect(THIRD, node)
    node.connect(SECOND, trio.second)
    taken: Blocks = [[0], [MIB], [8 * MIB]]
    given: Blocks = [[12 * MIB], [0], [4 * MIB]]
    transfers = [(node, node.read(SECOND, taken)), (trio.reader, trio.reader.read(THIRD, given))]
    assert [each.finish(transfer) for each, transfer in transfers] == ["done", "done"]
    node.expect(trio.second, taken)
    trio.reader.expect(node, given)
    assert (node.wrong_bytes(), trio.reader.wrong_bytes()) == (0, 0)


# ---------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("blocks", "named"),
    [
        ([[SLOTS_BYTES], [0], [1]], "remote offset 16777216"),
        ([[SLOTS_BYTES - 4], [0], [8]], "remote offset 16777212"),
        ([[0, -1], [0, 0], [8, 8]], "block 1: 8 bytes at remote offset -1"),
        ([[0], [SLOTS_BYTES - 4], [8]], "local offset 16777212"),
        ([[0], [-8], [8]], "local offset -8"),
        ([[0], [0], [0]], "block 0: 0 bytes"),
        ([[0], [0], [-4]], "block 0: -4 bytes"),
        ([[0], [0], [2**62]], "block 0: 4611686018427387904 bytes"),
        ([[2**63 - 1], [0], [2**63 - 1]], "remote offset 9223372036854775807"),
        ([[2**64], [0], [1]], "no 64-bit number"),
        ([[0, 1], [0], [1]], "2 remote offsets, 1 local offsets and 1 lengths"),
    ],
)
def test_blocks_outside_are_refused(trio: Trio, blocks: Blocks, named: str) -> None:
    with pytest.raises(Failed, match=named) as failed:
        trio.reader.read(FIRST, blocks)
    assert failed.value.kind == "ValueError"
    assert trio.reader.wrong_bytes() == 0


def test_peer_that_is_not_connected(trio: Trio) -> None:
    with pytest.raises(Failed, match="rank 7 is not connected") as failed:
        trio.reader.read((7, 1), [[0], [0], [8]])
    assert failed.value.kind == "RadixError"
    with pytest.raises(Failed, match="rank 1 is not connected"):
        trio.reader.read((FIRST[0], FIRST[1] + 1), [[0], [0], [8]])
    trio.reader.do("forget", peer=(7, 1))


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        (b"", "cannot be read"),
        (b"\x93\x01", "cannot be read"),
        (b"\x94\xa5other\x00\x10\xc4\x00", "the peer moves slots with 'other'"),
    ],
)
def test_metadata_of_something_else(trio: Trio, metadata: bytes, named: str) -> None:
    with pytest.raises(Failed, match=named) as failed:
        trio.reader.do("connect", peer=(4, 1), metadata=base64.b64encode(metadata).decode())
    assert failed.value.kind == "RadixError"
    with pytest.raises(Failed, match="not connected"):
        trio.reader.read((4, 1), [[0], [0], [8]])


def test_connecting_again_changes_nothing(trio: Trio) -> None:
    trio.reader.connect(FIRST, trio.first)
    trio.reader.fetch(FIRST, trio.first, spread(10, 100, 4096, seed=4))


def test_forgotten_peer_can_be_connected_again(trio: Trio) -> None:
    trio.reader.do("forget", peer=FIRST)
    with pytest.raises(Failed, match="not connected"):
        trio.reader.read(FIRST, [[0], [0], [8]])
    trio.reader.connect(FIRST, trio.first)
    trio.reader.fetch(FIRST, trio.first, spread(10, 100, 4096, seed=5))


def test_use_after_close(start: Start) -> None:
    node = start(1)
    node.connect(FIRST, node)
    node.do("close")
    node.do("close")
    with pytest.raises(Failed, match="closed"):
        node.read(FIRST, [[0], [0], [8]])


# ---------------------------------------------------------------- peers that stop, die, return


def _see_pending(reader: Node, transfer: str, case: Case) -> bool:
    """Whether `transfer` waits for its stopped peer."""
    state = reader.finish(transfer, BRIEFLY_S)
    assert state == "pending" or (case.one_sided and state == "done")
    return state == "pending"


def test_stopped_peer_holds_only_its_own_transfers(case: Case, trio: Trio) -> None:
    trio.reader.fetch(FIRST, trio.first, [[0], [0], [4096]])
    trio.first.signal(signal.SIGSTOP)
    transfer = trio.reader.read(FIRST, BIG)
    pending = _see_pending(trio.reader, transfer, case)
    other: Blocks = [[4096], [4096], [4096]]
    assert trio.reader.finish(trio.reader.read(SECOND, other)) == "done"
    trio.first.signal(signal.SIGCONT)
    if pending:
        assert trio.reader.finish(transfer) == "done"
    trio.reader.expect(trio.first, BIG)
    trio.reader.expect(trio.second, other)
    assert trio.reader.wrong_bytes() == 0


def test_peer_that_is_stopped_before_the_first_read(case: Case, trio: Trio, start: Start) -> None:
    owner = start(3)
    trio.reader.connect(THIRD, owner)
    owner.signal(signal.SIGSTOP)
    transfers = [trio.reader.read(THIRD, BIG), trio.reader.read(THIRD, BIG)]
    pending = [_see_pending(trio.reader, transfer, case) for transfer in transfers]
    other: Blocks = [[4096], [4096], [4096]]
    assert trio.reader.finish(trio.reader.read(SECOND, other)) == "done"
    owner.signal(signal.SIGCONT)
    for transfer, waits in zip(transfers, pending, strict=True):
        assert not waits or trio.reader.finish(transfer) == "done"
    trio.reader.expect(trio.second, other)
    trio.reader.expect(owner, BIG)
    assert trio.reader.wrong_bytes() == 0


def test_killed_peer_fails_only_its_own_transfers(case: Case, trio: Trio, start: Start) -> None:
    owner = start(4)
    trio.reader.connect(THIRD, owner)
    trio.reader.fetch(THIRD, owner, [[0], [0], [4096]])
    owner.signal(signal.SIGSTOP)
    lost = [trio.reader.read(THIRD, BIG) for _ in range(3)]
    pending = [_see_pending(trio.reader, transfer, case) for transfer in lost]
    other = [trio.reader.read(SECOND, [[i * 4096], [i * 4096], [4096]]) for i in range(10)]
    owner.kill_only()
    for transfer, waits in zip(lost, pending, strict=True):
        assert not waits or trio.reader.finish(transfer) == "failed"
    assert {trio.reader.finish(transfer) for transfer in other} == {"done"}
    assert trio.reader.finish(trio.reader.read(THIRD, BIG)) == case.dead
    assert trio.reader.finish(trio.reader.read(THIRD, BIG)) == case.dead
    trio.reader.do("do_not_care", blocks=BIG)
    trio.reader.expect(trio.second, [[i * 4096 for i in range(10)]] * 2 + [[4096] * 10])
    trio.reader.fetch(FIRST, trio.first, spread(50, 1024, 4096, seed=6))


def test_peer_killed_while_bytes_flow(case: Case, trio: Trio, start: Start) -> None:
    owner = start(5)
    trio.reader.connect(THIRD, owner)
    trio.reader.fetch(THIRD, owner, [[0], [0], [4096]])
    whole: Blocks = [[0], [0], [SLOTS_BYTES]]
    transfers = [trio.reader.read(THIRD, whole) for _ in range(8)]
    owner.kill_only()
    assert {trio.reader.finish(transfer) for transfer in transfers} <= {"done", "failed"}
    assert trio.reader.finish(trio.reader.read(THIRD, whole)) == case.dead
    trio.reader.do("do_not_care", blocks=whole)
    trio.reader.fetch(FIRST, trio.first, BIG)


def test_peer_that_returns_with_new_metadata(case: Case, trio: Trio, start: Start) -> None:
    before = start(6)
    trio.reader.connect(THIRD, before)
    trio.reader.fetch(THIRD, before, BIG)
    before.kill()
    assert trio.reader.finish(trio.reader.read(THIRD, [[0], [0], [8]])) == case.dead
    trio.reader.do("do_not_care", blocks=[[0], [0], [8]])
    after = start(7)
    trio.reader.connect((3, 104), after)  # another incarnation
    trio.reader.fetch((3, 104), after, BIG)
    trio.reader.connect(THIRD, after)  # or new metadata for the one that is known
    trio.reader.fetch(THIRD, after, spread(20, 1024, 4096, seed=8))


def test_broken_connections_are_made_again(case: Case, trio: Trio) -> None:
    trio.reader.fetch(FIRST, trio.first, [[0], [0], [4096]])
    broken = trio.reader.do("break_connections")["broken"]
    assert broken > 0 or case.backend == "builtin"
    states = [trio.reader.finish(trio.reader.read(FIRST, BIG)) for _ in range(3)]
    assert states[-1] == "done", states
    trio.reader.expect(trio.first, BIG)
    assert trio.reader.wrong_bytes() == 0


def test_forgetting_a_peer_does_not_end_what_is_in_flight(
    case: Case, trio: Trio, start: Start
) -> None:
    owner = start(8)
    trio.reader.connect(THIRD, owner)
    trio.reader.fetch(THIRD, owner, [[0], [0], [4096]])
    owner.signal(signal.SIGSTOP)
    transfer = trio.reader.read(THIRD, BIG)
    pending = _see_pending(trio.reader, transfer, case)
    trio.reader.do("forget", peer=THIRD)
    # It may still write: it must not be called over.
    assert not pending or trio.reader.finish(transfer, BRIEFLY_S) == "pending"
    owner.signal(signal.SIGCONT)
    state = trio.reader.finish(transfer) if pending else "done"
    if state == "done":
        trio.reader.expect(owner, BIG)
    trio.reader.do("do_not_care", blocks=BIG if state == "failed" else [[], [], []])
    trio.reader.connect(THIRD, owner)
    trio.reader.fetch(THIRD, owner, [[MIB], [0], [4096]])


def test_nothing_arrives_after_close(case: Case, trio: Trio, start: Start) -> None:
    owner = start(9)
    reader = start(0)
    reader.connect(THIRD, owner)
    trio.reader.connect(THIRD, owner)
    reader.fetch(THIRD, owner, [[0], [0], [4096]])
    trio.reader.fetch(THIRD, owner, [[0], [0], [4096]])
    owner.signal(signal.SIGSTOP)
    transfers = [reader.read(THIRD, BIG) for _ in range(3)]
    pending = [_see_pending(reader, transfer, case) for transfer in transfers]
    reader.do("close")
    states = {reader.finish(t, 0) for t, waits in zip(transfers, pending, strict=True) if waits}
    assert states <= {"failed"}
    reader.do("do_not_care", blocks=BIG)
    owner.signal(signal.SIGCONT)
    # The owner runs, and has sent all that it has to send by the time that this has come.
    trio.reader.fetch_at_last(THIRD, owner, BIG)
    assert reader.wrong_bytes() == 0


@pytest.mark.parametrize("stopped", [pytest.param(False, marks=pytest.mark.slow), True])
def test_readers_that_die_do_not_disturb_the_owner(trio: Trio, start: Start, stopped: bool) -> None:
    owner = start(11)
    trio.reader.connect(THIRD, owner)
    reader = start(0)
    reader.connect(THIRD, owner)
    assert reader.finish(reader.read(THIRD, [[0], [0], [4096]])) == "done"
    if stopped:
        owner.signal(signal.SIGSTOP)
    for _ in range(3):
        reader.read(THIRD, BIG)
    reader.kill_only()
    owner.signal(signal.SIGCONT)
    trio.reader.fetch_at_last(THIRD, owner, BIG)
    assert owner.wrong_bytes() == 0
