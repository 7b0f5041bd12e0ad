# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Arguments of the command line that no verb can use: told in a line, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixshmem_core.cli import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["dump", "/x", "--limit", "-5"],
        ["dump", "/x", "--limit", "9" * 30],
        ["dump", "/x", "--limit", "many"],
        ["top", "/x", "--count", "-1"],
        ["top", "/x", "--interval", "0"],
        ["top", "/x", "--interval", "nan"],
        ["top", "/x", "--interval", "1e300"],
    ],
)
def test_numbers_out_of_range(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert f"argument {arguments[2]}" in capsys.readouterr().err


def test_config_file_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.toml"
    file.write_bytes(b"\xff\xfe")
    assert main(["start", "--config", str(file)]) == 2
    assert f"{file} is not a TOML file" in capsys.readouterr().err
