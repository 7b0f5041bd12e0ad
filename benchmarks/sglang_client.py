# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What the demo and the tests ask an SGLang server over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

__all__ = ["Answer", "SGLangClient"]

_NEW_TOKENS = 6
_ROUNDING = 1e-4


@dataclass(frozen=True, slots=True)
class Answer:
    """What followed a prompt."""

    tokens: list[int]
    logprobs: list[float]
    """Of each of the tokens."""
    cached: dict[str, int]
    """How many tokens of the prompt had not to be computed: by source, 0 left out."""

    def agrees(self, computed: Answer) -> bool:
        """Whether it is the same output, but for what the order of float32 sums can change."""
        return self.tokens == computed.tokens and all(
            abs(mine - theirs) < _ROUNDING
            for mine, theirs in zip(self.logprobs, computed.logprobs, strict=True)
        )


class SGLangClient:
    """Raises RuntimeError with SGLang's own words where it refuses."""

    def __init__(self, port: int, admin_key: str, timeout_s: float) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._headers = {
            "Authorization": f"Bearer {admin_key}",
            "Content-Type": "application/json",
        }
        self._timeout_s = timeout_s

    def generate(self, prompt: list[int], count: int = _NEW_TOKENS, **options: Any) -> Answer:
        """Greedy; `options` are fields of SGLang's request: cache_salt, extra_key, rid."""
        body = {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": count, "ignore_eos": True},
            "return_logprob": True,
            **options,
        }
        answer = json.loads(self._call("POST", "/generate", body))
        meta = answer["meta_info"]
        details = meta.get("cached_tokens_details") or {}
        cached = {k: v for k, v in details.items() if isinstance(v, int) and v > 0}
        if sum(cached.values()) != meta["cached_tokens"]:
            raise RuntimeError(
                f"SGLang tells of {meta['cached_tokens']} cached tokens and of {details}"
            )
        logprobs = [each[0] for each in meta["output_token_logprobs"]]
        return Answer(answer["output_ids"], logprobs, cached)

    def abort(self, rid: str) -> None:
        self._call("POST", "/abort_request", {"rid": rid})

    def flush_cache(self) -> None:
        """Empty SGLang's own caches, on device and host; waits until it is idle."""
        self._call("POST", f"/flush_cache?timeout={self._timeout_s}")

    def attach(self, backend: str, extra_config: dict[str, Any], policy: str) -> None:
        body = {
            "hicache_storage_backend": backend,
            "hicache_storage_backend_extra_config_json": json.dumps(extra_config),
            "hicache_storage_prefetch_policy": policy,
            "hicache_write_policy": "write_through",
        }
        self._call("PUT", "/hicache/storage-backend", body)

    def detach(self) -> None:
        self._call("DELETE", "/hicache/storage-backend")

    def clear_storage(self) -> None:
        self._call("POST", "/hicache/storage-backend/clear")

    def storage(self) -> dict[str, Any]:
        """The backend that is attached, and its configuration."""
        value: dict[str, Any] = json.loads(self._call("GET", "/hicache/storage-backend"))
        return value

    def metric(self, name: str) -> float:
        """The sum of SGLang's metric of this name over all labels; 0 before the first."""
        lines = self._call("GET", "/metrics").splitlines()
        return sum(float(x.split()[-1]) for x in lines if x.startswith(f"sglang:{name}{{"))

    def is_up(self) -> bool:
        try:
            self._call("GET", "/health")
        except (RuntimeError, OSError):
            return False
        return True

    def _call(self, method: str, path: str, body: object = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError as error:
            words = error.read().decode(errors="replace")
            raise RuntimeError(
                f"SGLang answered {method} {path} with {error.code}: {words}"
            ) from None
