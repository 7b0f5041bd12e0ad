# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Engines driven step by step, and transfers that last until a test ends them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.vllm_offload.engines import Engine, Prompt
from vllm import SamplingParams

MOST_STEPS = 2000


class Steps:
    """Requests of one engine, one engine step at a time."""

    _ids = itertools.count()

    def __init__(self, engine: Engine) -> None:
        self._core = engine.llm.llm_engine
        self._done: dict[str, Any] = {}

    def add(self, prompt: Prompt, count: int = 16, **parts: Any) -> str:
        """A request for `count` tokens; `parts` are those of its prompt beside the tokens."""
        name = f"step-{next(self._ids)}"
        sampling = SamplingParams(
            temperature=0, max_tokens=count, ignore_eos=True, detokenize=False
        )
        self._core.add_request(name, {"prompt_token_ids": prompt, **parts}, sampling)
        return name

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            for output in self._core.step():
                if output.finished:
                    self._done[output.request_id] = output

    def until(self, condition: Callable[[], object], what: str) -> None:
        for _ in range(MOST_STEPS):
            if condition():
                return
            self.step()
        pytest.fail(f"not within {MOST_STEPS} steps: {what}")

    def finish(self, name: str) -> tuple[list[int], int]:
        """Its tokens, and how many of its own came from a cache."""
        self.until(lambda: name in self._done, f"the end of {name}")
        output = self._done[name]
        return list(output.outputs[0].token_ids), output.num_cached_tokens

    def abort(self, name: str) -> None:
        self._core.abort_request([name])


class SlowCopies:
    """Transfers of an engine wait until they are ended, as copies of a GPU may for several steps.

    They are copied when they end: at `finish()`, when vLLM waits for them, or after `steps` steps.
    """

    def __init__(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch, steps: int | None = None
    ) -> None:
        worker = engine.worker
        self._steps = steps
        self._waiting: list[tuple[int, str, Callable[[], object], int]] = []
        self._now = 0
        for kind in ("store", "load"):
            submit = getattr(worker, f"submit_{kind}")
            monkeypatch.setattr(worker, f"submit_{kind}", self._later(kind, submit))
        get_finished = worker.get_finished

        def poll() -> Any:
            self._now += 1
            if self._steps is not None:
                self._end(lambda entry: entry[3] + self._steps <= self._now)
            return get_finished()

        monkeypatch.setattr(worker, "get_finished", poll)
        monkeypatch.setattr(worker, "wait", lambda jobs: self._end(lambda e: e[0] in jobs))

    def _later(self, kind: str, submit: Callable[..., object]) -> Callable[..., bool]:
        def queue(job_id: int, *specs: Any, **options: Any) -> bool:
            self._waiting.append(
                (job_id, kind, lambda: submit(job_id, *specs, **options), self._now)
            )
            return True

        return queue

    def _end(self, chosen: Callable[[tuple[int, str, Callable[[], object], int]], bool]) -> None:
        ready = [entry for entry in self._waiting if chosen(entry)]
        self._waiting = [entry for entry in self._waiting if not chosen(entry)]
        for _, _, copy, _ in ready:
            copy()

    def waiting(self, kind: str) -> int:
        """How many stores or loads wait."""
        return sum(entry[1] == kind for entry in self._waiting)

    def finish(self) -> None:
        """End those that wait, and let later ones end at once."""
        self._steps = 0
        self._end(lambda _: True)

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """None wait inside; behind it later ones do."""
        self.finish()
        yield
        self._steps = None
