# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""vLLM's OpenAI server as users start it: its own process, and its engine's beside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from free_port import free_port

__all__ = ["OpenAIServer", "make_tokenizer"]

_START_S = 400.0
_ANSWER_S = 60.0


def make_tokenizer(folder: Path) -> str:
    """One word per token of the tiny models."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(512)}
    plain = Tokenizer(models.WordLevel(words, unk_token="w0"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="w0").save_pretrained(folder)
    return str(folder)


class OpenAIServer:
    """A context manager; the process group has ended when it is left."""

    def __init__(self, log: Path, model: str, *flags: str) -> None:
        self._port = free_port()
        self._log = log
        self._command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", model, "--served-model-name", "tiny", "--port", str(self._port)),
            *("--host", "127.0.0.1", *flags),
        ]

    def __enter__(self) -> OpenAIServer:
        environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        try:
            self._wait_until_up()
        except BaseException:
            self._kill_group()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_ANSWER_S)
        finally:
            self._kill_group()

    def kill(self) -> None:
        """SIGKILL to the server and its engine."""
        self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_ANSWER_S)

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            words = self._log.read_text(errors="replace")[-4000:]
            assert self._process.poll() is None, f"the server ended:\n{words}"
            assert time.monotonic() < deadline, f"the server was not up in {_START_S} s:\n{words}"
            try:
                self.get("/health")
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self._url(path), timeout=_ANSWER_S) as answer:
            text: str = answer.read().decode()
            return text

    def complete(self, prompt: list[int], count: int = 16) -> dict[str, Any]:
        """POST /v1/completions: greedy, with the ids of the tokens."""
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            self._url("/v1/completions"),
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            value: dict[str, Any] = json.load(answer)
            return value

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"
