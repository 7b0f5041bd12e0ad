# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""KV events for routers: which blocks of the shared cache this engine knows of.

A block is announced when this engine has stored it or first finds it, and taken back when any
process of the node has evicted it; so what is announced is never more than what the cache holds.
Only blocks of full attention are told: of the others the server keeps no evictions.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.base import OffloadingEvent, OffloadKey

from radixshmem import RadixClient, RadixError

from .keys import group_of, hash_of
from .path import word_of

__all__ = ["EventLog"]

_log = logging.getLogger("radixshmem.vllm")

_DRAIN_HASHES = 4096  # at once


class EventLog:
    """Collects events between two `take`s. Used by the scheduler's thread alone."""

    def __init__(self, client: RadixClient, full_groups: Collection[bytes]) -> None:
        """`full_groups`: what the OffloadKeys of each full-attention group end with."""
        self._client = client
        self._suffixes = tuple(full_groups)
        self._announced: dict[int, bytes] = {}  # word of the index -> vLLM's hash
        self._news: list[tuple[bool, list[bytes]]] = []  # (removed, hashes), in order
        client.kvevent_seek_to_head()

    @classmethod
    def of(cls, client: RadixClient, full_groups: Collection[bytes]) -> EventLog | None:
        """None, with a warning, when the server does not tell what it evicts."""
        if client.kvevent_enabled:
            return cls(client, full_groups)
        _log.warning(
            "radixshmem: KV events are enabled, but the server %s keeps none, so nothing is told "
            "of the shared cache; start it with --kvevent-ring-capacity 65536",
            client.name,
        )
        return None

    def announce(self, block_hashes: Iterable[bytes]) -> None:
        """These blocks are in the cache."""
        new = {word_of(h): h for h in block_hashes if word_of(h) not in self._announced}
        self._announced |= new
        self._note(False, new.values())

    def found(self, key: OffloadKey) -> base.LookupResult:
        """A lookup found the block: a HIT. vLLM can tell what is in it only if it was looked up."""
        if group_of(key) in self._suffixes:
            self.announce([hash_of(key)])
        return base.LookupResult.HIT

    def withdraw(self, block_hashes: Iterable[bytes]) -> None:
        """These blocks did not get there: vLLM forgets what it noted of them to be announced."""
        gone = list(block_hashes)
        for block_hash in gone:
            self._announced.pop(word_of(block_hash), None)
        self._note(True, gone)

    def forget(self) -> None:
        """Nothing is known of the cache any more: it was reset, or the server has gone."""
        self._note(True, self._announced.values())
        self._announced.clear()

    def take(self) -> list[OffloadingEvent]:
        """What happened since the last time."""
        try:
            self._drain()
        except RadixError:  # the server has gone; whoever looks up or stores next says so
            self.forget()
        news, self._news = self._news, []
        return [
            OffloadingEvent(self._keys(hashes), base.Medium.CPU, removed)
            for removed, hashes in news
        ]

    def _note(self, removed: bool, block_hashes: Collection[bytes]) -> None:
        if not block_hashes:
            return
        if not self._news or self._news[-1][0] != removed:
            self._news.append((removed, []))
        self._news[-1][1].extend(block_hashes)

    def _drain(self) -> None:
        more = True
        while more:
            words, lost = self._client.kvevent_drain(_DRAIN_HASHES)
            if lost:  # which ones is not known: those that are found again are announced again
                self.forget()
            gone = [self._announced.pop(w) for w in words.tolist() if w in self._announced]
            self._note(True, gone)
            more = len(words) == _DRAIN_HASHES

    def _keys(self, block_hashes: list[bytes]) -> list[OffloadKey]:
        return [OffloadKey(h + suffix) for suffix in self._suffixes for h in block_hashes]
