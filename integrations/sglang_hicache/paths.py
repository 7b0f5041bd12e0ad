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
import threading
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
        self._guard = threading.Lock()
        self._recent: dict[int, Keys] = {}  # by their last key, which tells them; the newest last

    def asked(self, keys: Sequence[str], extra_info: Any) -> tuple[Keys, int]:
        """The path that ends with `keys`, and the position of the first of them."""
        told = [] if extra_info is None else extra_info.prefix_keys or []
        return self._joined(told, fold_page_keys(keys, salt=self._salt))

    def of(self, keys: Sequence[str], extra_info: Any) -> tuple[Keys, int]:
        """The same for pages that are transferred: what is told before them may be too short."""
        told = [] if extra_info is None else extra_info.prefix_keys or []
        folded = fold_page_keys(keys, salt=self._salt)
        known, first = self._known(folded, len(told))
        if known is None:
            return self._joined(told, folded)
        end = first + len(folded)
        if end <= len(known) and known[end - 1] == folded[-1]:
            self._remember(known)
            return known[:end], first
        path = np.concatenate((known[:first], folded))
        self._remember(path, known[:first])
        return path, first

    def _joined(self, told: Sequence[str], folded: Keys) -> tuple[Keys, int]:
        path = folded
        if told:
            prefix = self._folded(told)
            path = np.concatenate((prefix, folded))
            self._remember(path, prefix)
        elif len(path):
            self._remember(path)
        return path, len(told)

    def _remember(self, path: Keys, prefix: Keys | None = None) -> None:
        """In place of `prefix`, if that is remembered: a prompt of many batches is one path."""
        with self._guard:
            if prefix is not None and len(prefix):
                self._recent.pop(int(prefix[-1]), None)
            last = int(path[-1])
            self._recent.pop(last, None)
            self._recent[last] = path
            if len(self._recent) > _REMEMBERED:
                del self._recent[next(iter(self._recent))]

    def _paths(self) -> list[Keys]:
        with self._guard:
            return list(self._recent.values())

    def _folded(self, keys: Sequence[str]) -> Keys:
        """SGLang asks for a long prompt in many batches, each behind all before: fold them once.

        A key is a digest of all before it, so the same one at the same place ends the same path.
        """
        length = len(keys)
        (last,) = fold_page_keys(keys[-1:], salt=self._salt)
        for path in reversed(self._paths()):
            if len(path) >= length and path[length - 1] == last:
                return path[:length]
        return fold_page_keys(keys, salt=self._salt)

    def _known(self, keys: Keys, least: int) -> tuple[Keys | None, int]:
        """The newest path with the first of the keys behind `least` pages or more, and where."""
        paths = self._paths()
        if not len(keys) or not paths:
            return None, 0
        newest = paths[-1]
        if len(newest) > least and newest[least] == keys[0]:  # as for the batches of a node
            return newest, least
        begins = [0, *itertools.accumulate(map(len, paths))]
        (places,) = np.nonzero(np.concatenate(paths) == keys[0])
        for place in reversed(places.tolist()):
            number = bisect.bisect(begins, place) - 1
            before = place - begins[number]
            if before >= least:
                return paths[number], before
        return None, 0
