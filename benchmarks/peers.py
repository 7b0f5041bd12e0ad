# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Other indexes that the benchmark compares with, when they are installed."""

from __future__ import annotations

import importlib
import json
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["DYNAMO_PACKAGE", "DynamoTree", "SglangTree", "store_event"]

DYNAMO_PACKAGE = "ai-dynamo-runtime==1.6.1"
_WORKER = 1


class DynamoTree:
    """Dynamo's RadixTree binding, as one worker's cache.

    Raises ImportError naming the package when it is not installed.
    """

    def __init__(self) -> None:
        try:
            module: Any = importlib.import_module("dynamo.llm")
        except ImportError as error:
            raise ImportError(f"pip install {DYNAMO_PACKAGE} ({error})") from error
        self._tree = module.RadixTree()
        self.find_matches: Callable[[list[int]], Any] = self._tree.find_matches

    def store(self, event: bytes) -> None:
        """Apply a prepared event of `store_event`."""
        self._tree.apply_event(_WORKER, event)

    def match(self, hashes: list[int]) -> int:
        """How many leading blocks it finds."""
        scores: dict[Any, int] = self.find_matches(hashes).scores
        return next(iter(scores.values()), 0)


def store_event(
    path: npt.NDArray[np.uint64] | Sequence[int], first_new: int, event_id: int = 0
) -> bytes:
    """The event that tells Dynamo of blocks path[first_new:]."""
    hashes = [int(block) for block in path]
    parent = hashes[first_new - 1] if first_new else None
    blocks = [{"block_hash": block, "tokens_hash": block} for block in hashes[first_new:]]
    stored = {"parent_hash": parent, "blocks": blocks}
    return json.dumps({"event_id": event_id, "data": {"stored": stored}}).encode()


class SglangTree:
    """SGLang's RadixCache without an engine around it; keys are token ids.

    In an environment with SGLang only: see adapter_rows.py.
    """

    def __init__(self, page_tokens: int) -> None:
        radix: Any = importlib.import_module("sglang.srt.mem_cache.radix_cache")
        base: Any = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")
        torch: Any = importlib.import_module("torch")
        self._tree: Any = radix.RadixCache.create_simulated(page_size=page_tokens)
        self._key: Any = radix.RadixKey
        self._match_params: Any = base.MatchPrefixParams
        self._insert_params: Any = base.InsertParams
        self._torch = torch

    def key(self, tokens: npt.NDArray[np.int64]) -> Any:
        """What `match` takes."""
        return self._match_params(key=self._key(array("q", tokens.tobytes())))

    def insert(self, tokens: npt.NDArray[np.int64]) -> None:
        """Store a path; the slots of its tokens are made up."""
        slots = self._torch.arange(len(tokens))
        key = self._key(array("q", tokens.tobytes()))
        self._tree.insert(self._insert_params(key=key, value=slots))

    def match(self, key: Any) -> int:
        """How many leading tokens it finds."""
        return int(self._tree.match_prefix(key).device_prefix_len)
