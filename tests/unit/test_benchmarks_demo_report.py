# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import json
from dataclasses import replace

import pytest
from demo_report import Outcome, print_outcome, to_json, verdict
from engine_numbers import EngineNumbers
from simulate import Simulation
from traces import conversations

TRACE = conversations(10, 0)


def outcome(**changes: int | str) -> Outcome:
    """Ten requests served by two workers, 4 of 16 blocks hit; `changes` go to the second."""
    first = EngineNumbers(
        requests=6,
        referenced=10,
        hit=4,
        inserted=5,
        not_stored=1,
        refused={"MEMPOOL_FULL": 1},
        copied_out_bytes=4_000,
        copy_out_s=1e-6,
        query_s=[1e-6, 3e-6],
        allocate_s=[1e-6],
        insert_s=[2e-6],
        began_s=100.0,
        ended_s=101.5,
    )
    second = EngineNumbers(
        requests=4,
        referenced=6,
        inserted=6,
        refused={"MEMPOOL_FULL": 2},
        query_s=[2e-6],
        began_s=100.5,
        ended_s=102.0,
    )
    for name, value in changes.items():
        setattr(second, name, value)
    return Outcome(
        trace=TRACE,
        blocks=8,
        slot_bytes=1000,
        workers=[first, second],
        cached=8,
        infinite=Simulation(16, 8, 0),
        sequential=Simulation(16, 5, 3),
    )


def test_workers_are_added_up() -> None:
    numbers = to_json(outcome())
    assert numbers["requests"] == 10
    assert numbers["blocks_hit"] == 4
    assert numbers["elapsed_s"] == 2.0
    assert numbers["blocks_missed"] == 12
    assert numbers["blocks_evicted"] == 11 - 8
    assert numbers["hit_ratio"] == 0.25
    assert numbers["hit_ratio_infinite"] == 0.5
    assert numbers["refused_inserts"] == {"MEMPOOL_FULL": 3}
    assert numbers["copy_out_gb_s"] == pytest.approx(4.0)
    assert numbers["query_us"] == {"p50": pytest.approx(2.0), "p99": pytest.approx(2.98)}
    assert json.loads(json.dumps(numbers)) == numbers


def test_every_missed_block_is_accounted_for() -> None:
    numbers = to_json(outcome(inserted=4))
    assert numbers["blocks_already_there"] == 2
    kept = ("blocks_stored", "blocks_not_stored", "blocks_already_there")
    assert numbers["blocks_missed"] == sum(int(str(numbers[name])) for name in kept)


def test_good_run_passes() -> None:
    assert verdict(outcome(), None, 0.02) == []
    assert verdict(outcome(), 0.26, 0.02) == []


def test_one_wrong_byte_fails_and_is_described() -> None:
    bad = outcome(wrong_bytes=1, first_wrong="1 of 1000 bytes differ in slot 7")
    assert verdict(bad, None, 0.02) == [
        "1 wrong bytes were read; first: 1 of 1000 bytes differ in slot 7"
    ]


def test_unserved_requests_fail() -> None:
    assert verdict(outcome(requests=3), None, 0.02) == ["9 requests were served, the trace has 10"]


@pytest.mark.parametrize("expected", [0.2, 0.3])
def test_other_hit_ratio_fails(expected: float) -> None:
    (problem,) = verdict(outcome(), expected, 0.02)
    assert problem == f"hit ratio 0.2500 is not within 0.02 of {expected}"


def test_table_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    print_outcome(outcome())
    lines = {
        cells[0].strip(): cells[1].strip()
        for line in capsys.readouterr().out.splitlines()
        if len(cells := line.strip("│").split("│")) == 2
    }
    assert lines["requests"] == "10"
    assert lines["requests per second"] == "5"
    assert lines["blocks hit"] == "4"
    assert lines["blocks missed"] == "12"
    assert lines["blocks evicted"] == "3"
    assert lines["blocks not stored (already there)"] == "0"
    assert lines["hit ratio"] == "0.2500"
    assert lines["infinite cache"] == "0.5000"
    assert lines["sequential LRU of this size, simulated"] == "0.3125"
    assert lines["wrong bytes"] == "0"
    assert lines["query + pin, us (p50 / p99)"] == "2.0 / 3.0"
    assert lines["insert, us (p50 / p99)"] == "2.0 / 2.0"
    assert lines["copy out, GB/s per worker"] == "4.00"
    assert lines["inserts with MEMPOOL_FULL"] == "3"


def test_run_without_inserts_has_no_latency_to_tell() -> None:
    idle = replace(outcome(), workers=[EngineNumbers(requests=10)])
    numbers = to_json(idle)
    assert "insert_us" not in numbers
    assert numbers["hit_ratio"] == 0.0
