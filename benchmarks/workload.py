# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The long-conversation workload that all index benchmarks use: 950k blocks, 34k inserts.

2,200 conversations of 512 blocks and 24 of 4,096, of 16 tokens each, all beginning with one system
prompt of 64 blocks. A turn adds 8 to 63 blocks. Every fourth short conversation shares its
predecessor's first half, cut at a turn. Conversations grow in turn, one turn each per round, so
that neighbours in time are strangers in the tree. Same seed, same workload, on every machine.

File format of `save` (read by csrc/bench), all little-endian u64:

    magic "radixwl2", conversations C, of these short, inserts I
    offset[C + 1]    conversation c is hash[offset[c] .. offset[c + 1])
    hash[offset[C]]  prefix hashes
    insert[I][2]     conversation, blocks of it that exist after this turn
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK_TOKENS", "MAGIC", "Workload", "load", "make", "save", "tokens_of"]

BLOCK_TOKENS = 16
MAGIC = int.from_bytes(b"radixwl2", "little")

_TURN_BLOCKS = (8, 64)  # half-open
_BRANCH_EVERY = 4
_HEAD_WORDS = 4


@dataclass(frozen=True, slots=True)
class Workload:
    """Paths and the order in which they grow."""

    short: int
    """Conversations [0, short) have the short length."""
    offsets: npt.NDArray[np.uint64]
    hashes: npt.NDArray[np.uint64]
    inserts: npt.NDArray[np.uint64]

    @property
    def conversations(self) -> int:
        return len(self.offsets) - 1

    def path(self, conversation: int) -> npt.NDArray[np.uint64]:
        """All prefix hashes of one conversation."""
        begin, end = self.offsets[conversation : conversation + 2]
        return self.hashes[int(begin) : int(end)]

    def distinct_blocks(self) -> int:
        return len(np.unique(self.hashes))


def make(
    seed: int = 7,
    short: int = 2200,
    short_blocks: int = 512,
    long: int = 24,
    long_blocks: int = 4096,
    system_blocks: int = 64,
) -> Workload:
    """The workload of the module's docstring; smaller counts make smaller ones of its kind."""
    random = np.random.default_rng(seed)

    def fresh(count: int) -> npt.NDArray[np.uint64]:
        return random.integers(1, 2**63 - 1, size=count, dtype=np.uint64)

    def grow(ends: list[int], length: int) -> list[int]:
        """Turn ends from the last of `ends` up to `length`."""
        while ends[-1] < length:
            ends.append(min(length, ends[-1] + int(random.integers(*_TURN_BLOCKS))))
        return ends

    system = fresh(system_blocks)
    paths: list[npt.NDArray[np.uint64]] = []
    turns: list[list[int]] = []
    for conversation in range(short + long):
        length = short_blocks if conversation < short else long_blocks
        ends = grow([system_blocks], length)
        path = np.concatenate([system, fresh(length - system_blocks)])
        if conversation < short and conversation % _BRANCH_EVERY == _BRANCH_EVERY - 1:
            cut = turns[-1][len(turns[-1]) // 2]
            path[:cut] = paths[-1][:cut]
            ends = grow([end for end in turns[-1] if end <= cut], length)
        paths.append(path)
        turns.append(ends)

    inserts = [
        (conversation, ends[turn])
        for turn in range(max(map(len, turns)))
        for conversation, ends in enumerate(turns)
        if turn < len(ends)
    ]
    offsets = np.zeros(len(paths) + 1, np.uint64)
    np.cumsum([len(path) for path in paths], out=offsets[1:])
    return Workload(
        short=short,
        offsets=offsets,
        hashes=np.concatenate(paths),
        inserts=np.array(inserts, np.uint64),
    )


def tokens_of(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """BLOCK_TOKENS deterministic token ids for each hash."""
    place = np.arange(1, BLOCK_TOKENS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = hashes[:, None] + place[None, :]
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(29)
    return (mixed % np.uint64(128_000)).astype(np.int64).reshape(-1)


def save(workload: Workload, path: str | os.PathLike[str]) -> None:
    """Write the flat file described above."""
    head = [MAGIC, workload.conversations, workload.short, len(workload.inserts)]
    parts = (workload.offsets, workload.hashes, workload.inserts)
    with open(path, "wb") as file:
        for part in (np.array(head, np.uint64), *parts):
            file.write(np.ascontiguousarray(part, "<u8").data)


def load(path: str | os.PathLike[str]) -> Workload:
    """Read a file of `save`. Raises ValueError when it is not one."""
    words = np.fromfile(path, "<u8")
    if len(words) < _HEAD_WORDS or int(words[0]) != MAGIC:
        raise ValueError(f"{os.fspath(path)} is not a workload file; make one with workload.py")
    conversations, short, inserts = (int(word) for word in words[1:_HEAD_WORDS])
    offsets, rest = np.split(words[_HEAD_WORDS:], [conversations + 1])
    expected = int(offsets[-1]) + 2 * inserts if len(offsets) else -1
    if len(rest) != expected:
        raise ValueError(
            f"{os.fspath(path)} is damaged: {len(rest)} words follow the offsets, its header "
            f"says {expected}; make it again with workload.py"
        )
    hashes, insert_words = np.split(rest, [int(offsets[-1])])
    return Workload(short, offsets, hashes, insert_words.reshape(-1, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the long-conversation workload.")
    parser.add_argument("out", help="file to write")
    workload = make()
    save(workload, parser.parse_args().out)
    print(f"{workload.distinct_blocks()} distinct blocks, {len(workload.inserts)} inserts")


if __name__ == "__main__":
    main()
