# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import numpy as np
import pytest
from simulate import simulate
from traces import Trace, conversations


def trace_of(*paths: list[int], times: list[float] | None = None) -> Trace:
    offsets = np.cumsum([0, *map(len, paths)])
    ids = np.array([block for path in paths for block in path], np.int64)
    when = np.arange(len(paths)) if times is None else times
    return Trace("test", 16, ids, offsets, np.asarray(when, np.float64))


def test_repeated_path_hits_wholly() -> None:
    outcome = simulate(trace_of([1, 2, 3], [1, 2, 3]), 10)
    assert (outcome.references, outcome.hits, outcome.evicted) == (6, 3, 0)
    assert outcome.hit_ratio == 0.5


def test_hit_stops_at_the_first_missing_block() -> None:
    # 3 exists, but behind another prefix: the same id on another path is another block.
    assert simulate(trace_of([1, 2, 3], [1, 9, 3]), None).hits == 1


def test_branches_share_their_prefix() -> None:
    assert simulate(trace_of([1, 2, 3], [1, 2, 4], [1, 2, 4, 5]), None).hits == 2 + 3


def test_least_recent_leaf_goes_first() -> None:
    # Capacity 4: [5] evicts 3, the leaf of the older path; then [1, 2] is still there, 3 is not.
    outcome = simulate(trace_of([1, 2, 3], [4], [5], [1, 2, 3]), 4)
    assert outcome.hits == 2
    assert outcome.evicted == 2


def test_a_hit_makes_a_path_recent() -> None:
    assert simulate(trace_of([1], [2], [1], [3], [1]), 2).hits == 2
    assert simulate(trace_of([1], [2], [3], [1]), 2).hits == 0


def test_parent_is_kept_while_a_child_is_cached() -> None:
    # [1, 2] is older than [1, 3]: 2 goes before 1, whatever their age.
    assert simulate(trace_of([1, 2], [1, 3], [4], [1, 3]), 3).hits == 1 + 2


def test_path_longer_than_the_cache_keeps_its_head() -> None:
    outcome = simulate(trace_of([1, 2, 3, 4], [1, 2, 3, 4]), 2)
    assert outcome.hits == 2
    assert outcome.evicted == 4


def test_of_equally_old_leaves_the_deepest_goes() -> None:
    same_time = trace_of([1], [2, 3], [9], [1], [2, 3], times=[0, 0, 1, 2, 2])
    # [9] takes the place of 3, not of 1 or 2.
    assert simulate(same_time, 3).hits == 1 + 1


def test_empty_paths_and_no_limit() -> None:
    outcome = simulate(trace_of([], [1], []), None)
    assert (outcome.references, outcome.hits, outcome.evicted) == (1, 0, 0)
    assert simulate(trace_of([]), 1).hit_ratio == 0.0


def test_capacity_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1 block, got 0"):
        simulate(trace_of([1]), 0)


def test_agrees_with_a_plain_model_on_random_conversations() -> None:
    trace = conversations(70, 5)
    for capacity in (40, 150, 400):
        assert simulate(trace, capacity).hits == plain_lru_hits(trace, capacity)


def plain_lru_hits(trace: Trace, capacity: int) -> int:
    """The same policy by exhaustive search for the victim."""
    used: dict[tuple[int, ...], float] = {}
    hits = 0
    for request in range(len(trace)):
        path = tuple(trace.path(request).tolist())
        prefixes = [path[: end + 1] for end in range(len(path))]
        hits += sum(prefix in used for prefix in prefixes)
        used.update(dict.fromkeys(prefixes, float(trace.times_ms[request])))
        while len(used) > capacity:
            parents = {prefix[:-1] for prefix in used}
            leaves = [prefix for prefix in used if prefix not in parents]
            del used[min(leaves, key=lambda prefix: (used[prefix], -len(prefix)))]
    return hits
