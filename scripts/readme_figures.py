# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Fill the table of README.md, section "Measured", from the JSON of a benchmark run.

    make bench BENCH_ARGS="--json bench.json"
    python scripts/readme_figures.py bench.json

Replaces what stands between the two markers. Rows that were skipped are listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->"
HEAD = "| figure | measured | beside it, in the same run | value | must be |\n|---|---|---|---|---|"


def table(report: dict[str, Any]) -> str:
    """The rows of a report of benchmarks/bench.py as Markdown, and the machine below them."""
    lines = [HEAD]
    for row in report["rows"]:
        figure = row["figure"]
        if row["value"] is None:
            lines.append(_line(figure, row["note"], "", "", ""))
            continue
        if row["note"]:
            figure += f" ({row['note']})"
        bound = ""
        if row["bound"] is not None:
            sign = "at least" if row["at_least"] else "at most"
            bound = f"{sign} {row['bound']:.3g} {row['unit']}"
            bound += "" if row["reached"] else " **missed**"
        value = f"{row['value']:.3g} {row['unit']}"
        lines.append(_line(figure, row["measured"], row["reference"], value, bound))
    return "\n".join([*lines, "", f"Machine: {report['machine']}."]) + "\n"


def _line(*cells: str) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return "| " + " | ".join(escaped) + " |"


def fill(readme: str, report: dict[str, Any]) -> str:
    """`readme` with the table of `report` between its markers. ValueError without them."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise ValueError(f"expected one {BEGIN.strip()} and one {END}")
    before, rest = readme.split(BEGIN)
    return before + BEGIN + table(report) + END + rest.split(END)[1]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fill README.md from a benchmark's JSON.")
    parser.add_argument("json", type=Path, help="written by benchmarks/bench.py --json")
    parser.add_argument("--readme", type=Path, default=Path(__file__).parents[1] / "README.md")
    arguments = parser.parse_args(argv)
    try:
        report = json.loads(arguments.json.read_text(encoding="utf-8"))
        filled = fill(arguments.readme.read_text(encoding="utf-8"), report)
    except (OSError, ValueError) as error:
        print(f"readme_figures: {arguments.json} -> {arguments.readme}: {error}", file=sys.stderr)
        return 2
    except KeyError as error:
        print(f"readme_figures: {arguments.json} has no {error}", file=sys.stderr)
        return 2
    arguments.readme.write_text(filled, encoding="utf-8")
    print(f"{arguments.readme}: {len(report['rows'])} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
