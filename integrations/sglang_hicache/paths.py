# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The keys of a call as a path from the begin of the sequence on.

The index finds a page by the whole path to it. SGLang tells the keys before those of a call, except
for sidecars before 0.5.21, and for later batches of a node at the root before 0.5.21 and with
pipeline stages; and where it skips pages that came on the device after its question (`buffer_only`)
it tells too few, as before a Mamba state that it stores behind its KV. Those are found in the paths
that were asked for, or stored, shortly before.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from radixshmem import fold_page_keys

from .pages import Keys

__all__ = ["Paths"]

_REMEMBERED = 64


class Paths:
    """Of one rank, whose salt its keys are folded with. Safe to use from several threads."""

    def __init__(self, salt: int) -> None:
        self._salt = salt
        self._recent: deque[Keys] = deque(maxlen=_REMEMBERED)

    def asked(self, keys: Sequence[str], extra_info: Any) -> tuple[Keys, int]:
        """The path that ends with `keys`, and the position of the first of them."""
        told = [] if extra_info is None else extra_info.prefix_keys or []
        path = fold_page_keys(keys, salt=self._salt)
        if told:
            path = np.concatenate((self._folded(told), path))
        self._recent.append(path)
        return path, len(told)

    def of(self, keys: Sequence[str], extra_info: Any) -> tuple[Keys, int]:
        """The same for pages that are transferred: what is told before them may be too short."""
        told = [] if extra_info is None else extra_info.prefix_keys or []
        folded = fold_page_keys(keys, salt=self._salt)
        prefix = self._prefix_of(folded, len(told))
        if told and (prefix is None or len(prefix) == len(told)):
            return self.asked(keys, extra_info)
        if prefix is None:
            self._recent.append(folded)
            return folded, 0
        return np.concatenate((prefix, folded)), len(prefix)

    def _folded(self, keys: Sequence[str]) -> Keys:
        """SGLang asks for a long prompt in many batches, each behind all before: fold them once.

        A key is a digest of all before it, so the same one at the same place ends the same path.
        """
        length = len(keys)
        (last,) = fold_page_keys(keys[-1:], salt=self._salt)
        for path in reversed(list(self._recent)):
            if len(path) >= length and path[length - 1] == last:
                return path[:length]
        return fold_page_keys(keys, salt=self._salt)

    def _prefix_of(self, keys: Keys, least: int) -> Keys | None:
        """What is known to be before the first of the keys, `least` pages or more."""
        paths = list(self._recent)
        if not len(keys) or not paths:
            return None
        begins = [0, *itertools.accumulate(map(len, paths))]
        (places,) = np.nonzero(np.concatenate(paths) == keys[0])
        for place in reversed(places.tolist()):
            number = bisect.bisect(begins, place) - 1
            before = place - begins[number]
            if before >= least:
                return paths[number][:before]
        return None
