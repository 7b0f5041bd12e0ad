# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from adapter_rows import sglang_rows, vllm_rows
from coprocess import RadixBench
from peers import store_event
from plot import headroom
from rows import Row, bounded, interleave, ratio, skipped, table_cells, time_text


def row(value: float, bound: float, *, at_least: bool = False) -> Row:
    return Row("figure", "", "", value, bound, at_least)


def test_samples_are_taken_in_turn_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []

    def measure(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    samples = interleave(2, {"a": lambda: measure("a"), "b": lambda: measure("b")})
    assert calls == ["a", "b"] * 3
    assert samples == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_ratio_is_taken_round_by_round() -> None:
    # The second round was slow for both; a ratio of medians would say 10.
    assert ratio([2.0, 200.0, 20.0], [1.0, 100.0, 2.0]) == 2.0


def test_bound_is_an_upper_one_unless_it_says_at_least() -> None:
    assert row(1.0, 1.0).reached is True
    assert row(1.1, 1.0).reached is False
    assert row(1.0, 1.0, at_least=True).reached is True
    assert row(0.9, 1.0, at_least=True).reached is False


def test_bounded_row_shows_both_sides() -> None:
    made = bounded("f", {"ours": [2e-6], "theirs": [8e-6]}, "ours", "theirs", 1 / 8)
    assert table_cells(made) == (
        "f",
        "ours: 2.00 us",
        "theirs: 8.00 us",
        "0.25 x",
        "<= 0.125 x",
        "NO",
    )


def test_row_without_a_bound_is_for_information() -> None:
    made = bounded("f", {"ours": [2e-6], "theirs": [8e-6]}, "ours", "theirs", None)
    assert made.reached is None
    assert headroom(made) is None
    assert table_cells(made)[3:] == ("0.25 x", "", "")


def test_skipped_row_claims_nothing() -> None:
    made = skipped("f", "no peer")
    assert made.reached is None
    assert headroom(made) is None
    assert table_cells(made) == ("f", "skipped: no peer", "", "", "", "")


def test_headroom_is_above_one_exactly_if_reached() -> None:
    assert headroom(row(2.0, 4.0)) == 2.0
    assert headroom(row(8.0, 4.0)) == 0.5
    assert headroom(row(2.0, 4.0, at_least=True)) == 0.5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.7e-7, "470 ns"), (1.234e-5, "12.34 us"), (0.0045, "4.50 ms"), (1.2, "1.20 s")],
)
def test_times_are_shown_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_store_event_names_the_block_before_the_new_ones() -> None:
    event = json.loads(store_event([11, 12, 13], 1, 5))
    assert event == {
        "event_id": 5,
        "data": {
            "stored": {
                "parent_hash": 11,
                "blocks": [
                    {"block_hash": 12, "tokens_hash": 12},
                    {"block_hash": 13, "tokens_hash": 13},
                ],
            }
        },
    }
    assert json.loads(store_event([11], 0))["data"]["stored"]["parent_hash"] is None


def fake_bench(folder: Path, body: str) -> str:
    script = folder / "radix_bench"
    script.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    script.chmod(0o755)
    return str(script)


def test_coprocess_answers_row_by_row(tmp_path: Path) -> None:
    body = """echo '{"rows": ["walk"]}'
while read row; do echo "{\\"row\\": \\"$row\\", \\"ns\\": 250.0, \\"count\\": 7}"; done"""
    with RadixBench(fake_bench(tmp_path, body)) as bench:
        assert bench.rows == ("walk",)
        assert bench.measure("walk") == pytest.approx(250e-9)
        assert bench.measure("walk") == pytest.approx(250e-9)


def test_coprocess_that_ends_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="radix_bench ended with status 3 before it answered"):
        RadixBench(fake_bench(tmp_path, "exit 3"))


def test_rows_of_another_environment_come_back_as_they_are(tmp_path: Path) -> None:
    sent = Row("figure", "measured", "reference", 0.5, 1.0, unit="us", note="n")
    python = fake_bench(tmp_path, f"echo noise >&2; echo '{json.dumps([asdict(sent)])}'")
    assert vllm_rows(python, 3) == [sent]


def test_rows_of_an_environment_that_is_missing_are_skipped() -> None:
    for (row_,), engine in ((vllm_rows("", 3), "vllm"), (sglang_rows("", 3), "sglang")):
        assert row_.value is None
        assert f"--{engine}-python" in row_.note


def test_sglang_is_measured_with_what_it_lacks_on_a_cpu(tmp_path: Path) -> None:
    python = fake_bench(tmp_path, 'echo "$PYTHONPATH" "$1" "$2" >&2; exit 3')
    with pytest.raises(RuntimeError, match=r"sglang_cpu\S* \S*/sglang_process.py 3"):
        sglang_rows(python, 3)


def test_a_failure_in_another_environment_is_told_in_its_words(tmp_path: Path) -> None:
    python = fake_bench(tmp_path, "echo no such model >&2; exit 3")
    with pytest.raises(RuntimeError, match=r"(?s)ended with status 3; it said:.*no such model"):
        vllm_rows(python, 3)
