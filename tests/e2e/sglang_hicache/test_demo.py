# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`make demo-sglang`, on the servers of these tests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import demo_sglang
import pytest
from e2e.sglang_hicache.node import Node
from sglang_client import Answer
from sglang_server import SGLangServer

WHOLE = demo_sglang.PAGES * 16


@pytest.fixture
def demo(
    node: Node,
    native: SGLangServer,
    both: tuple[SGLangServer, SGLangServer],
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    @contextlib.contextmanager
    def two_servers() -> Iterator[tuple[str, SGLangServer, SGLangServer]]:
        yield node.name, *both

    both[1].client.flush_cache()
    monkeypatch.setattr(demo_sglang, "two_servers", two_servers)
    return demo_sglang


def test_pages_come_back_in_the_server_and_in_another(
    demo: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "demo.json"
    assert demo.main(["--json", str(report)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "server 2, restored" in said.out
    assert said.out.count("2,560") == 3
    rounds = json.loads(report.read_text())["rounds"]
    cached = [[answer["cached"] for answer in each["answers"]] for each in rounds]
    assert cached == [
        [{}] * 4,
        [{"device": WHOLE}] * 4,
        [{"storage": WHOLE}] * 4,
        [{"storage": WHOLE}] * 4,
    ]
    cold, warm, *restored = [
        [(answer["tokens"], answer["logprobs"]) for answer in each["answers"]] for each in rounds
    ]
    assert [tokens for tokens, _ in cold] == [tokens for tokens, _ in warm]
    assert restored == [warm, warm], "to the last bit, wherever the KV came from"
    assert len({tuple(tokens) for tokens, _ in cold}) == 4, "the prompts are told apart"


def test_a_demo_whose_pages_do_not_come_back_fails(
    demo: Any,
    native: SGLangServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(native.client, "flush_cache", native.client.clear_storage)
    assert demo.main([]) == 1
    assert (
        "FAILED: server 2, restored, prompt 3: {}, not {'storage': 640}" in capsys.readouterr().err
    )


def test_the_verdict_names_what_differs() -> None:
    def rounds(**changed: Any) -> list[demo_sglang.Round]:
        answer = Answer([5, 6], [-0.5, -0.25], {})
        cold = demo_sglang.Round("cold", [answer] * 4, "", 1.0)
        other = replace(answer, cached={"storage": WHOLE})
        answers = [other] * 3 + [replace(other, **changed)]
        return [cold, demo_sglang.Round("restored", answers, "storage", 1.0)]

    assert demo_sglang.verdict(rounds()) == []
    assert demo_sglang.verdict(rounds(logprobs=[-0.5, -0.25001])) == []  # rounding
    for changed in ({"tokens": [5, 7]}, {"logprobs": [-0.5, -0.26]}):
        (problem,) = demo_sglang.verdict(rounds(**changed))
        assert problem == "restored, prompt 3: another output than when computed"
    (problem,) = demo_sglang.verdict(rounds(cached={"storage": WHOLE - 16}))
    assert problem == "restored, prompt 3: {'storage': 624}, not {'storage': 640}"
