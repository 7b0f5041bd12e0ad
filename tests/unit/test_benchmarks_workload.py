# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import workload

SMALL = {"short": 12, "short_blocks": 96, "long": 2, "long_blocks": 300, "system_blocks": 16}


def test_full_workload_has_its_documented_size() -> None:
    full = workload.make()
    assert full.conversations == 2224
    assert full.distinct_blocks() == 951_586
    assert len(full.inserts) == 34_107


def test_same_seed_same_workload() -> None:
    first, again, other = (workload.make(seed, **SMALL) for seed in (1, 1, 2))
    assert np.array_equal(first.hashes, again.hashes)
    assert np.array_equal(first.inserts, again.inserts)
    assert not np.array_equal(first.hashes, other.hashes)


def test_all_share_the_system_prompt_and_every_fourth_branches_off() -> None:
    made = workload.make(3, **SMALL)
    for conversation in range(made.conversations):
        assert np.array_equal(made.path(conversation)[:16], made.path(0)[:16])
    for conversation in range(1, 12):
        path, before = made.path(conversation), made.path(conversation - 1)
        shared = int(np.argmin(path == before))
        assert shared > 16 if conversation % 4 == 3 else shared == 16
    assert len(made.path(12)) == 300


def test_inserts_grow_each_conversation_to_its_end_by_turns() -> None:
    made = workload.make(3, **SMALL)
    reached = dict.fromkeys(range(made.conversations), 0)
    for conversation, end in made.inserts.tolist():
        assert reached[conversation] < end
        assert reached[conversation] == 0 or end - reached[conversation] < 64
        reached[conversation] = end
    assert [reached[c] for c in range(made.conversations)] == [
        len(made.path(c)) for c in range(made.conversations)
    ]
    assert made.inserts[:14, 0].tolist() == list(range(14))  # round robin


def test_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    made = workload.make(3, **SMALL)
    workload.save(made, tmp_path / "w")
    read = workload.load(tmp_path / "w")
    assert read.short == made.short == 12
    for name in ("offsets", "hashes", "inserts"):
        assert np.array_equal(getattr(read, name), getattr(made, name)), name


def test_other_and_cut_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(b"not a workload at all, but long enough to hold a header")
    with pytest.raises(ValueError, match="is not a workload file"):
        workload.load(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is not a workload file"):
        workload.load(path)
    workload.save(workload.make(3, **SMALL), path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match="is damaged"):
        workload.load(path)
