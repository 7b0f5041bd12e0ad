# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from cluster_simulation import (
    ROWS,
    Simulator,
    connections,
    heads,
    main,
    slots_of,
    table,
    workload_of,
)
from traces import Trace
from workload import load

FIGURES = {
    "rounds_0": 1,
    "rounds_1": 2,
    "rounds_2": 5,
    "rounds_3": 2,
    "lookups": 10,
    "store_per_s_bytes": 1024.0,
    "remote_blocks_found": 30,
    "remote_blocks_exist": 40,
}


def trace_of(block_tokens: int, *paths: list[int]) -> Trace:
    offsets = np.cumsum([0, *map(len, paths)])
    ids = np.array([block for path in paths for block in path], np.int64)
    return Trace("test", block_tokens, ids, offsets, np.zeros(len(paths)))


def fake_simulation(folder: Path, body: str) -> str:
    script = folder / "radix_simulation"
    script.write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n", encoding="utf-8")
    script.chmod(0o755)
    return str(script)


def answering(keepers: int) -> str:
    """A program that prints plausible figures, with its numbers among them."""
    rest = dict.fromkeys(FIELDS, 1.0) | FIGURES
    return (
        "nodes, slots, lookups, directory = map(int, sys.argv[2:])\n"
        f"figures = json.loads({json.dumps(rest)!r})\n"
        f"figures.update(nodes=nodes, slots=slots, keepers={keepers})\n"
        "figures['directory_bytes'] = directory or 2 * slots\n"
        "print(json.dumps(figures))"
    )


FIELDS = [
    "blocks",
    "directory_load",
    "directory_load_max",
    "directory_entries_max",
    "keys_held",
    "keys_dropped",
    "keys_published",
    "rounds_4",
    "rounds_5",
    "rounds_above_2_many_keys",
    "reads_mean",
    "reads_p99",
    "bytes_mean",
    "bytes_p99",
    "peers_mean",
    "peers_p99",
    "shards_max_over_mean",
    "keeper_reads_max_over_mean",
    "hottest_keeper_reads_per_lookup",
    "holder_reads_per_lookup",
    "hottest_holder_reads_per_lookup",
    "store_per_s_keys",
    "store_per_s_batches",
    "heal_per_s_batches",
    "heal_per_s_bytes",
    "leave_shards_moved",
    "leave_keys",
    "heal_keys",
]


def test_blocks_of_a_trace_become_sixteen_token_blocks() -> None:
    made = workload_of(trace_of(32, [1, 2], [1, 3], [4, 2]))
    assert made.offsets.tolist() == [0, 4, 8, 12]
    assert made.inserts.tolist() == [[0, 4], [1, 4], [2, 4]]
    first, second, third = (made.path(i).tolist() for i in range(3))
    assert first[:2] == second[:2]
    # The same id on another path is another block, so ten are different.
    assert len({*first, *second, *third}) == 10
    assert made.distinct_blocks() == 10


def test_nodes_share_the_slots_but_have_some() -> None:
    assert slots_of(16) * 16 == slots_of(256) * 256 == 1 << 22
    assert slots_of(4096) == 8192


def test_connections_count_both_directions() -> None:
    assert connections(2, 1) == 2
    assert connections(256, 2) == 1020


def test_directory_is_enlarged_where_few_nodes_keep_shards(tmp_path: Path) -> None:
    all_keep = Simulator(fake_simulation(tmp_path, answering(300)), "w", 10)
    assert [run["directory_bytes"] for run in all_keep.runs(300, 1024)] == [2048]
    some_keep = Simulator(fake_simulation(tmp_path, answering(128)), "w", 10)
    runs = some_keep.runs(512, 1024)
    assert [run["directory_bytes"] for run in runs] == [2048, 8192]
    assert heads(runs) == ["512 nodes", "512 nodes, larger directory"]


def test_table_has_shares_and_what_a_keeper_receives(tmp_path: Path) -> None:
    runs = Simulator(fake_simulation(tmp_path, answering(128)), "w", 10).runs(512, 1024)
    cells = {name.strip(): values for name, *values in table(runs)}
    assert cells["1 round or none"] == ["30.0 %", "30.0 %"]
    assert cells["blocks found, of those a node has"] == ["75.0 %", "75.0 %"]
    assert cells["KiB received/s by a keeper"] == ["4.0", "4.0"]  # 1 KiB/s of each of 512 to 128
    assert cells["CONNECTIONS, 1 process a node"] == ["1,022", "1,022"]


def test_the_program_gets_the_trace_and_its_figures_are_written(tmp_path: Path) -> None:
    program = fake_simulation(
        tmp_path,
        f"open({str(tmp_path / 'w')!r}, 'wb').write(open(sys.argv[1], 'rb').read())\n"
        + answering(4),
    )
    arguments = ["--simulation", program, "--nodes", "4", "--requests", "50"]
    assert main([*arguments, "--json", str(tmp_path / "out.json")]) == 0
    assert len(load(tmp_path / "w").inserts) == 50
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert [run["nodes"] for run in report["runs"]] == [4]


def test_a_failure_is_told_in_the_programs_words(tmp_path: Path) -> None:
    program = fake_simulation(tmp_path, "sys.exit('no memory')")
    with pytest.raises(RuntimeError, match=r"(?s)ended with status 1; it said:.*no memory"):
        Simulator(program, "w", 10).run(4, 1024)


def test_a_missing_program_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--simulation", "/nowhere/radix_simulation"])
    assert "build it with" in capsys.readouterr().err


def test_the_document_has_the_rows_of_the_table() -> None:
    document = Path(__file__).parents[2] / "docs" / "scaling.md"
    figures = document.read_text(encoding="utf-8").split("## Figures")[1].split("##")[0]
    rows = [line.split("|")[1].strip() for line in figures.splitlines() if line.startswith("| ")]
    assert [row.replace("&emsp;", "  ") for row in rows[1:]] == [name for name, _ in ROWS]
