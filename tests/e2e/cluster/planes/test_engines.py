# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What only one of the engines does."""

from __future__ import annotations

import base64
import os
import signal

import msgspec
import pytest
from e2e.harness import eventually

from radixshmem_core.cluster.planes.base import RemoteMemory

from .nodes import Blocks, Case, Failed, Start

PEER = (1, 1)
BIG: Blocks = [[i << 20 for i in range(8)], [i << 20 for i in range(8)], [1 << 20] * 8]

mooncake = pytest.mark.parametrize("case", [Case("mooncake", "tcp")], ids=str)
nixl = pytest.mark.parametrize("case", [Case("nixl", "tcp")], ids=str)


@mooncake
def test_first_contact_with_a_silent_peer_fails_and_is_tried_again(
    case: Case, start: Start
) -> None:
    reader, owner = start(0), start(1)
    reader.connect(PEER, owner)
    owner.signal(signal.SIGSTOP)
    assert reader.finish(reader.read(PEER, BIG)) == "failed"
    owner.signal(signal.SIGCONT)
    reader.fetch_at_last(PEER, owner, BIG)


@mooncake
def test_read_without_progress_fails(
    case: Case, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MC_TCP_PROGRESS_TIMEOUT_SEC", "1")
    reader, owner = start(0), start(1)
    reader.connect(PEER, owner)
    reader.fetch(PEER, owner, [[0], [0], [4096]])
    owner.signal(signal.SIGSTOP)
    assert reader.finish(reader.read(PEER, BIG)) == "failed"
    reader.do("do_not_care", blocks=BIG)
    owner.signal(signal.SIGCONT)
    reader.fetch_at_last(PEER, owner, BIG)


@mooncake
def test_server_at_the_port_of_an_earlier_one_is_refused(case: Case, start: Start) -> None:
    reader, owner = start(0), start(1)
    reader.connect(PEER, owner)
    reader.fetch(PEER, owner, [[0], [0], [4096]])
    known = RemoteMemory.decode("mooncake", base64.b64decode(owner.metadata))
    endpoint = known.engine.split(b"/")[0]
    later = msgspec.structs.replace(known, engine=endpoint + b"/another life")
    with pytest.raises(Failed, match="has the mooncake port of an earlier one"):
        reader.do("connect", peer=(1, 2), metadata=base64.b64encode(later.encode()).decode())


@nixl
def test_process_that_serves_is_started_again_and_ends_with_its_server(
    case: Case, start: Start
) -> None:
    reader, owner = start(0), start(1)
    reader.connect(PEER, owner)
    reader.fetch(PEER, owner, BIG)
    (serving,) = owner.children()
    os.kill(serving, signal.SIGKILL)
    eventually(lambda: owner.children() not in ([], [serving]), "another one is there")
    reader.fetch_at_last(PEER, owner, BIG)  # its metadata is new
    (serving,) = owner.children()
    os.kill(owner.pid, signal.SIGKILL)
    eventually(lambda: not os.path.exists(f"/proc/{serving}/exe"), "it has ended too")


@nixl
def test_process_ends_cleanly(case: Case, start: Start) -> None:
    node = start(1)
    node.end_input()
    assert node.wait() == 0
