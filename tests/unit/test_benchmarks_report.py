# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import math

import pytest
from report import format_p50_p99, machine, percentile_us, print_table, rate_gb_s


def test_percentiles_are_microseconds() -> None:
    seconds = [i * 1e-6 for i in range(101)]
    assert percentile_us(seconds, 50) == pytest.approx(50.0)
    assert percentile_us(seconds, 99) == pytest.approx(99.0)
    assert format_p50_p99(seconds) == "50.0 / 99.0"


def test_without_samples_nothing_is_made_up() -> None:
    assert math.isnan(percentile_us([], 50))
    assert format_p50_p99([]) == "no sample"
    assert rate_gb_s(10, 0.0) == 0.0


def test_rate_counts_decimal_gigabytes() -> None:
    assert rate_gb_s(3_000_000_000, 2.0) == pytest.approx(1.5)


def test_table_is_printed_in_full_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    label = "a label that is longer than eighty characters would allow " * 2
    print_table("title", ("", "value"), [(label, "1,234"), ("b", "5")])
    out = capsys.readouterr().out
    assert label.strip() in out
    assert "1,234" in out
    assert out.startswith("title")


def test_machine_is_one_line_with_its_python() -> None:
    assert "\n" not in machine()
    assert "Python 3." in machine()
