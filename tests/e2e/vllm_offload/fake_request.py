# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Requests of the fake scheduler, and their jobs: see fake_scheduler.py."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from e2e.vllm_offload.slot_bytes import BLOCK_TOKENS
from vllm.v1.kv_offload.base import ReqContext

from radixshmem.integrations.vllm_offload.transfer import SlotSpec


def chain(tokens: Iterable[int]) -> list[bytes]:
    """Hashes of the blocks, each of the whole path up to it."""
    hashes, state = [], hashlib.sha256(b"root")
    for token in tokens:
        state.update(token.to_bytes(4, "big"))
        hashes.append(state.digest())
    return hashes


class Request:
    """What the connector reads of vLLM's Request, and what vLLM's scheduler keeps of it.

    A block is named by one number; `tail` tokens follow the last whole one.
    """

    def __init__(self, request_id: str, blocks: Sequence[int], tail: int = 1) -> None:
        self.request_id = request_id
        self.blocks = list(blocks)
        self.tail = tail
        self.block_hashes = chain(blocks)
        self.num_prompt_blocks = len(blocks)
        self.kv_transfer_params = None
        self.num_preemptions = 0
        self.state = "waiting"  # loading, running, finished
        self.computed = 0  # blocks
        self.next_stored: list[int] = []  # of each group
        self.jobs: set[int] = set()
        self.context = ReqContext(req_id=request_id)
        self.told_end = False
        self.loaded = 0  # blocks, of the last hit

    @property
    def num_tokens(self) -> int:
        return len(self.blocks) * BLOCK_TOKENS + self.tail

    def append(self, block: int) -> None:
        """A block of generated tokens is full."""
        self.blocks.append(block)
        self.block_hashes.append(chain(self.blocks)[-1])

    def replace(self, keep: int, blocks: Sequence[int]) -> None:
        """A streaming session goes on otherwise from a block on: the live list shrinks."""
        self.blocks[keep:] = blocks
        del self.block_hashes[keep:]
        self.block_hashes += chain(self.blocks)[keep:]
        self.num_prompt_blocks = len(self.blocks)
        self.computed = min(self.computed, keep)
        self.next_stored = [min(n, keep) for n in self.next_stored]

    def key(self, group: int, block: int) -> bytes:
        return self.block_hashes[block] + group.to_bytes(4, "big")


@dataclass
class Job:
    request: Request
    keys: list[bytes]
    spec: SlotSpec
    is_store: bool
    waits: int = 0  # steps
    fails: bool = False


@dataclass
class Plan:
    """The metadata of a step: jobs to start, and those to wait for."""

    loads: dict[int, Job]
    stores: dict[int, Job]
    flush: set[int]


@dataclass
class Report:
    """What the workers tell after a step."""

    done: dict[int, int] = field(default_factory=dict)
    failed_slots: set[tuple[int, int]] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
