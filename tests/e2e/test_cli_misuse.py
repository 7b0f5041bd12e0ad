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
        ["top", "/x", "--interval", "soon"],
        ["top", "/x", "--interval", "1e300"],
    ],
)
def test_numbers_out_of_range(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"argument {arguments[2]}" in told
    assert "invalid _" not in told  # a name of ours means nothing to a user


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["help"], "unknown argument help; did you mean --help?"),
        (["--nmae", "/x"], "unknown argument --nmae; did you mean --name?"),
        (["statsu", "/x"], "unknown argument statsu; did you mean status or start?"),
        (["start", "/x", "--data-bytes", "1M"], "the name is given by --name /x"),
        (["dump", "/x", "--limits", "5"], "did you mean --limit?"),
    ],
)
def test_unknown_arguments_come_with_what_was_meant(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert hint in text
    assert len(text.splitlines()) == 2  # the usage and the error


def test_a_flag_without_its_value_shows_a_short_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--name"])
    text = capsys.readouterr().err
    assert "argument --name: expected one argument" in text
    assert len(text.splitlines()) <= 3


def test_config_file_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.toml"
    file.write_bytes(b"\xff\xfe")
    assert main(["start", "--config", str(file)]) == 2
    assert f"{file} is not a TOML file" in capsys.readouterr().err
