# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import numpy as np

from radixshmem_core.cluster.placement import Participant, Placement

A, B, C = (Participant(rank, 100 + rank, 1024, warming=False) for rank in range(3))
NEW = Participant(3, 103, 1024, warming=True)


def _made(*participants: Participant, former: np.ndarray | None = None) -> Placement:
    placement = Placement(participants, replicas=1)
    if former is not None:
        placement.former = {1: former}
    placement.make()
    return placement


def _keepers(shard_map: np.ndarray) -> set[int]:
    return set(np.unique(shard_map).tolist()) - {0xFFFF}


def test_a_warming_member_is_written_to_and_not_read() -> None:
    placement = _made(A, B, NEW)
    assert _keepers(placement.read) == {0, 1}
    assert _keepers(placement.write) == {0, 1, 3}
    assert len(placement.maps()) == 2
    assert placement.served != placement.reads


def test_alone_even_a_warming_member_is_read() -> None:
    placement = _made(NEW)
    assert _keepers(placement.read) == {3}
    assert len(placement.maps()) == 1


def test_the_former_map_is_written_to_as_well() -> None:
    before = _made(A, B)
    after = _made(A, B, C, former=before.read)
    assert after.maps() == [after.read.tobytes(), before.read.tobytes()]
    assert _made(A, B, former=before.read).maps() == [before.read.tobytes()]


def test_what_is_read_is_named_by_lives() -> None:
    settled = _made(A, B)
    assert _made(A, B, NEW).reads == settled.reads
    again = Participant(B.rank, B.incarnation + 1, B.lines, warming=False)
    assert _made(A, again).reads != settled.reads
