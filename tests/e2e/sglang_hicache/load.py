# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Requests that go on in the background while a test does something else."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from e2e.harness import eventually
from sglang_client import Answer, SGLangClient

__all__ = ["Load", "in_background"]

_END_S = 120.0


def in_background(client: SGLangClient, prompt: list[int], **options: Any) -> Future[Answer]:
    """The answer, once it is there."""
    executor = ThreadPoolExecutor(1)
    answer = executor.submit(client.generate, prompt, **options)
    executor.shutdown(wait=False)
    return answer


class Load:
    """The prompts again and again, as a context manager; SGLang's own caches are always empty."""

    def __init__(self, client: SGLangClient, prompts: Sequence[list[int]]) -> None:
        self._client = client
        self._prompts = prompts
        self._want = [client.generate(prompt) for prompt in prompts]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.wrong: list[Answer] = []
        """Answers that were others than when computed."""
        self.error: Exception | None = None
        self.rounds = 0
        self.restored = 0
        """Tokens, from storage."""

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_END_S)
        assert not self._thread.is_alive(), f"a round took longer than {_END_S} s"
        assert self.error is None, self.error
        assert self.wrong == []

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                for prompt, want in zip(self._prompts, self._want, strict=True):
                    answer = self._client.generate(prompt)
                    self.restored += answer.cached.get("storage", 0)
                    if not answer.agrees(want):
                        self.wrong.append(answer)
                self.rounds += 1
                self._client.flush_cache()
        except Exception as error:
            self.error = error

    def wait_rounds(self, count: int) -> None:
        """Until so many more have begun and ended."""
        target = self.rounds + count + 1
        eventually(lambda: self.error or self.rounds >= target, "rounds go on", _END_S)

    def wait_restored(self) -> None:
        """Until something comes from storage, after all that came before."""
        before = self.restored
        eventually(lambda: self.error or self.restored > before, "pages are restored", _END_S)
