# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The private extension: conversion and calls into csrc, no policy.

Hashes are 1-D contiguous buffers of 8-byte integers; slots are 1-D contiguous buffers of int32 or
int64 (results are int32). All arguments may be positional: keywords cost as much as a query.
Errors of calls raise the classes of `radixshmem_core.errors`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

LAYOUT_VERSION: int
FAULT_POINTS: bool
"""True only in a build made for crash tests."""

class ComponentType(enum.IntEnum):
    FULL = 0
    SWA = 1
    MAMBA = 2

class InsertError(enum.IntEnum):
    OK = 0
    BAD_REQUEST = 1
    MEMPOOL_FULL = 2
    BUSY = 3
    PINS_FULL = 4
    CURSOR_STALE = 5
    FULL_PATH_MISSING = 7

def error_table() -> list[tuple[str, int, str, str]]:
    """(name, value, Python exception, meaning) of every error code."""

def compute_hashes(
    token_ids: Buffer, tokens_per_block: int, namespace: bytes, parent: int | None
) -> npt.NDArray[np.uint64]:
    """`token_ids`: 1-D buffer (any stride) of any integer format. ValueError outside [0, 2**32)."""

def hash_bytes(data: Buffer) -> int:
    """XXH3-64 of the bytes."""

def fold_page_keys(
    keys: Sequence[str], prefix: Sequence[str] | None, salt: int
) -> npt.NDArray[np.uint64]:
    """The numbers in the first 16 hex digits, XOR salt. ValueError names the first bad item."""

# ---------------------------------------------------------------- index

@final
class IndexPlan:
    """Everything that fixes the size and meaning of an index region. All fields are writable."""

    block_size: int  # tokens
    segment_blocks: int  # S; 0 = chosen from block_size
    full_slots: int
    swa_slots: int
    mamba_slots: int
    swa_window_blocks: int
    max_clients: int
    max_pins: int
    ring_entries: int  # change ring, a power of two
    lock_timeout_ms: int
    directory_bytes: int  # of the own part of the directory; 0 = chosen
    identity: bytes  # opaque to the core: geometry, fingerprint, names; at most 1 MiB
    def __init__(self) -> None: ...
    def region_bytes(self) -> int:
        """Size of the region this plan needs. ValueError for an impossible plan."""

@final
class QueryResult:
    """Result of a query; see docs/api.md. Arrays are built when read."""

    @property
    def status(self) -> int: ...
    @property
    def common_hit(self) -> int: ...
    @property
    def full_fragments(self) -> list[tuple[int, int, list[int]]]: ...
    @property
    def full_slots(self) -> npt.NDArray[np.int32]: ...
    @property
    def swa_start(self) -> int: ...
    @property
    def swa_slots(self) -> npt.NDArray[np.int32]: ...
    @property
    def swa_source_rank(self) -> int: ...
    @property
    def mamba(self) -> tuple[int, int] | None: ...
    @property
    def cursor(self) -> Cursor | None: ...
    def finalize(self) -> None: ...
    def validate(self) -> bool: ...

@final
class AuxResult:
    """Result of query_aux; see docs/api.md."""

    @property
    def status(self) -> int: ...
    @property
    def common_hit(self) -> int: ...
    @property
    def slots(self) -> npt.NDArray[np.int32]: ...
    def finalize(self) -> None: ...
    def validate(self) -> bool: ...

@final
class Cursor:
    """Where a match ended: an opaque value for `Index.extend`."""

    @property
    def position(self) -> int: ...

@final
class InsertResult:
    @property
    def error(self) -> int: ...
    @property
    def unused_slots(self) -> npt.NDArray[np.int32]: ...
    @property
    def landed(self) -> tuple[int, int]: ...

@final
class Index:
    """One registered client of an index region (or a read-only view without a client id)."""

    @staticmethod
    def attach(name: str, group: str, read_only: bool) -> Index:
        """Map the region and register. ServerNotReady when there is none (yet), GeometryMismatch
        on another layout, RadixError when the client table is full."""
    @staticmethod
    def inspect(name: str) -> Index:
        """Register for a look under the lock, beside a full client table too."""
    @property
    def client_id(self) -> int:
        """0 for the server itself; -1 for a read-only view."""
    @property
    def generation(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def identity(self) -> bytes: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def usable(self) -> bool:
        """False once the region was closed or superseded, or this object closed or forked."""
    def query(
        self,
        hashes: Buffer,
        mask: int = 1,
        local_only: bool = False,
        lock: bool = False,
        update_meta: bool = True,
    ) -> QueryResult: ...
    def query_aux(
        self,
        hashes: Buffer,
        component: int,
        start: int = 0,
        lock: bool = False,
        update_meta: bool = True,
    ) -> AuxResult: ...
    def extend(
        self,
        cursor: Cursor,
        more_hashes: Buffer,
        mask: int = 1,
        local_only: bool = False,
        lock: bool = False,
        update_meta: bool = True,
    ) -> QueryResult: ...
    def insert(
        self,
        hashes: Buffer,
        slots: Buffer,
        start: int = 0,
        auto_recycle: bool = True,
        component: int = 0,
    ) -> InsertResult: ...
    def allocate_slots(self, n: int, component: int = 0) -> npt.NDArray[np.int32]: ...
    def recycle_slots(self, slots: Buffer, component: int = 0) -> None: ...
    def evict(self, n: int, component: int = 0) -> int:
        """Free up to n unpinned blocks; returns how many. Used by the background evictor."""
    def reset(self) -> None: ...
    def slots_total(self, component: int = 0) -> int: ...
    def slots_free(self, component: int = 0) -> int:
        """Free slots; frees what a reset left behind first, when its pins are gone."""
    def total_blocks(self) -> int: ...
    def total_radix_nodes(self) -> int: ...
    def stats(self) -> dict[str, int]:
        """Counters and memory figures (the keys of docs/api.md, `status`)."""
    def kvevent_seek_to_head(self) -> None: ...
    def kvevent_drain(self, max_hashes: int) -> tuple[npt.NDArray[np.uint64], bool]: ...
    def check(self, repair: bool = False) -> list[str]:
        """Walk every invariant under the lock; one line per violation, each starting with its
        number ("I4 ..."). With repair, rebuild what is derived first."""
    def dump(self, max_segments: int) -> list[dict[str, Any]]:
        """Segments: id, class, state, start, count, parent, children, touch, first_hash, slots."""
    def pins(self) -> list[dict[str, int]]:
        """Pins of all clients: client, segment, depth, mask, start."""
    def clients(self) -> list[dict[str, int]]:
        """Client table: client, state (1 live, 2 dead), generation, group, pid, alive (byte lock),
        pins, slots, and the client's counters."""
    def close(self) -> None:
        """Wait for calls in flight, clear pins, recycle owned slots, unmap. Idempotent."""

@final
class IndexServer:
    """The owner of a name: holds byte 0 of `/dev/shm/<name>.live` for as long as it lives."""

    @staticmethod
    def claim(name: str, mode: int, gid: int) -> IndexServer:
        """RadixError when a living server holds the name. `gid` -1 leaves the group alone."""
    def found(self) -> str:
        """What a predecessor left: "none", "adoptable" (clients still live on it), "dead" or
        "foreign" (not a region of this layout version)."""
    def reclaim(self) -> None:
        """Mark a left-over region superseded and delete it."""
    def create(self, plan: IndexPlan, prefault: bool) -> Index:
        """Make the region, reserve all its memory, publish it; returns the server's own Index."""
    def adopt(self) -> Index:
        """Take over a dead server's region after a full rebuild and check."""
    def client_alive(self, client_id: int) -> bool: ...
    def reap(self, client_id: int, exited: bool) -> tuple[int, int]:
        """Clear the pins of a dead client; its slots too when no process of its group lives:
        to the free lists if `exited` (its pidfd was seen readable), else to quarantine.
        Returns (pins cleared, slots released). TimeoutError: the lock is busy, try again."""
    def release_quarantine(self) -> int:
        """Free the slots that have been in quarantine since before the last call; returns how
        many. Call it once per quarantine period."""
    def close(self) -> None:
        """Mark the region closed, delete it; delete the live file when no client holds a byte."""

# ---------------------------------------------------------------- cluster

def shard_map(weights: Sequence[tuple[int, int]], replicas: int) -> bytes:
    """For (rank, weight) of each member: [65,536, 2] uint16, rank and replica; 0xffff = none.
    The same on every machine, whatever the order."""

@final
class PeerTable:
    """The peer table of the server's own index region; one thread at a time."""

    def __init__(self, index: Index) -> None: ...
    def set(
        self, rank: int, state: str, warming: bool, incarnation: int, layout: dict[str, int]
    ) -> None:
        """state: "live" (may be read), "other" (another digest), "gone" (does not answer).
        `layout` is the `own_layout()` of that peer; missing fields are 0."""
    def forget(self, rank: int) -> None: ...
    def set_own(self, rank: int, digest: int, draining: bool) -> None: ...
    def set_shard_map(self, map: Buffer) -> None:
        """[65,536, 2] uint16, as of `shard_map`."""
    def own_layout(self) -> dict[str, int]:
        """Where the areas of the own region lie, for the peer tables of others."""
    def own_digest(self) -> int:
        """What `set_own` said, also before a crash; 0 before it."""

@final
class Directory:
    """The own part of the directory; one thread at a time."""

    def __init__(self, index: Index) -> None: ...
    def clear(self, digest: int) -> None:
        """Forget everything; keys are mixed with `digest` from here on."""
    def admit(self, rank: int, incarnation: int) -> None:
        """Take entries of this life of a rank; those of its other lives are dead."""
    def expel(self, rank: int) -> None: ...
    def apply(self, batch: Buffer, rank: int, incarnation: int) -> None:
        """Take a batch of a Publisher. ValueError says what is wrong with it."""
    def figures(self) -> dict[str, int]: ...

@final
class Publisher:
    """What the own tree has for the directory, as batches per destination; one thread at a time."""

    def __init__(self, index: Index, rank: int, digest: int, chunk_blocks: int) -> None: ...
    def set_maps(self, maps: Sequence[Buffer], rate: int, delay_ms: int) -> None:
        """The maps to write to, 5 at most, each [65,536, 2] uint16. Keys of shards with a new
        keeper go to it, `rate` a second, from `delay_ms` on."""
    def resend(self, to: int, rate: int) -> None:
        """That rank is in another life: it gets all that it keeps."""
    def republish_all(self, rate: int) -> None:
        """Everything once more, `rate` keys a second; 0: as fast as `collect` is called."""
    def collect(self, everything: bool) -> tuple[list[tuple[int, bytes]], bool]:
        """(rank, batch) for each destination, and whether more is to come at once. `everything`:
        tails too, which otherwise wait until they are idle."""
    def republishing(self) -> bool: ...
    def stop(self) -> None:
        """The next `collect` tells all to forget this rank; nothing is published any more."""
    def figures(self) -> dict[str, int]: ...

@final
class Responder:
    """Answers index streams of peers, in a thread of its own."""

    @staticmethod
    def start(index: Index, slots: Buffer | None) -> Responder:
        """Requires: the index stays open until `stop`."""
    def add(self, fd: int) -> None:
        """Take an authenticated stream over, in any case."""
    def serve_verbs(self, devices: list[VerbsDevice]) -> None:
        """Let peers read through these too, on streams added from now on. Registers all memory
        with each device, which takes a while; RadixError names the memlock limit."""
    def figures(self) -> dict[str, int]: ...
    def stop(self) -> None: ...

@final
class VerbsDevice:
    """An open RDMA device. Safe to use from several threads."""

    @staticmethod
    def open(device: str, gid_index: int, port: int) -> VerbsDevice:
        """gid_index -1: chosen. ServerNotReady: no verbs here, or the port is down. ValueError: no
        such device (it names those that are here), or no such GID (it prints the table)."""
    def add_destination(self, memory: Buffer) -> None:
        """Slots are read straight to it from now on. Kept mapped while this object lives."""
    def describe(self) -> str:
        """Device, port, link layer, GID and MTU as they are now."""

@final
class PeerIndex:
    """What this process reads of its peers' indexes. Safe to use from several threads."""

    def __init__(self, index: Index, timeout_us: int) -> None:
        """timeout_us: of a lookup; 0: 2,000 while all peers are read one-sided, else 20,000."""
    def query(
        self, hashes: Buffer, mask: int = 1, lock: bool = False, update_meta: bool = True
    ) -> QueryResult:
        """As Index.query, and on from there in the indexes of peers. `lock` pins the local part."""
    def candidates(self, hashes: Buffer, mask: int, local_hit: int) -> list[tuple[int, int]]:
        """(rank, blocks) of peers that claim to hold more than `local_hit`, deepest first."""
    def living(self) -> list[tuple[int, int]]:
        """(rank, incarnation) of all that may be read, this node included."""
    def connections(self) -> list[dict[str, Any]]:
        """rank, incarnation, transport, suspect, reads, bytes."""
    def wanted(self) -> list[int]:
        """The ranks of live peers that lookups had to do without since the last call."""
    def figures(self) -> dict[str, Any]:
        """Totals of the lookups of this process, and how long one waits for a peer now."""
    def adopt_own(self, rank: int, incarnation: int, timeout_ms: int) -> bool:
        """Read the own memory, if `rank` is the own one; returns whether it is."""
    def adopt_shm(self, rank: int, incarnation: int, index_name: str, timeout_ms: int) -> None:
        """ServerNotReady when that life of that index is not on this machine."""
    def adopt_tcp(self, rank: int, incarnation: int, fd: int, timeout_ms: int) -> None:
        """Takes `fd` over, an index stream to the peer."""
    def adopt_verbs(
        self, rank: int, incarnation: int, fd: int, device: VerbsDevice, timeout_ms: int
    ) -> None:
        """Takes `fd` over. ServerNotReady when the peer serves no verbs."""
    def take_back(self, rank: int, incarnation: int, timeout_ms: int) -> bool:
        """Whether a peer that was silent answers on the reader that there is."""
    def drop(self, rank: int) -> None: ...

@final
class PeerSlots:
    """One reader of a peer's slots; one call at a time."""

    @staticmethod
    def shm(
        index_name: str, incarnation: int, data_name: str, hugepage_path: str, nonce: int
    ) -> PeerSlots: ...
    @staticmethod
    def tcp(fd: int) -> PeerSlots: ...
    @staticmethod
    def verbs(fd: int, device: VerbsDevice, rail: int, timeout_ms: int) -> PeerSlots:
        """Takes `fd` over. `rail`: the number of the peer's device. ServerNotReady when it has
        none."""
    def read(
        self, memory: Buffer, remote: Buffer, local: Buffer, lengths: Buffer, timeout_ms: int
    ) -> None:
        """Copies lengths[i] bytes from offset remote[i] of the peer's slots to memory[local[i]:]
        (uint64 each), without the GIL. TimeoutError, RadixError: nothing is written afterwards."""

# ---------------------------------------------------------------- slots

def check_room(need: str, bytes: int, hugepage_path: str) -> None:
    """RadixError, naming what to raise, when `bytes` do not fit now. It begins with `need`."""

@final
@final
class PinnedChunks:
    """Memory of a SlotStore that is registered with CUDA. Registered and mapped while any
    reference to this object lives, also after the store was closed."""

    def pin_next(self) -> int:
        """Register the next chunk; the new `pinned_bytes`. RadixError; no GIL; one thread."""
    @property
    def pinned_bytes(self) -> int:
        """[0, pinned_bytes) of the data range is registered; the end of a slot."""
    @property
    def total_bytes(self) -> int: ...

@final
class SlotStore:
    """The mapped SlotStore region: pools of fixed-size slots."""

    @staticmethod
    def create(
        name: str,
        num_slots: Sequence[int],
        slot_bytes: Sequence[int],
        slot_align: int,
        hugepage_path: str,
        nonce: int,
        mode: int,
        gid: int,
    ) -> SlotStore:
        """num_slots/slot_bytes: by component, 0 = absent. Reserves the memory (RadixError that
        names the fix when it does not fit); does not touch the pages: see `prefault`."""
    @staticmethod
    def attach(name: str, hugepage_path: str, timeout_ms: int, read_only: bool) -> SlotStore: ...
    @staticmethod
    def destroy(name: str, hugepage_path: str) -> bool:
        """Delete the region's file; False when there was none."""
    @property
    def name(self) -> str: ...
    @property
    def nonce(self) -> int: ...
    @property
    def pool_mask(self) -> int: ...
    @property
    def is_hugepage(self) -> bool: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def data_bytes(self) -> int: ...
    def num_slots(self, kind: int) -> int: ...
    def slot_bytes(self, kind: int) -> int:
        """The stride."""
    def slot_offset(self, slot: int, kind: int) -> int: ...
    def view(self, offset: int, length: int) -> memoryview:
        """1-D, format "B", writable unless read-only; keeps the mapping alive."""
    def read_slot(self, slot: int, kind: int) -> bytes: ...
    def write_slot(self, slot: int, data: Buffer, kind: int) -> None: ...
    def copy_in(
        self, slots: Buffer, ptrs: Buffer, sizes: Buffer, kind: int, offset: int
    ) -> int: ...
    def copy_out(
        self, slots: Buffer, ptrs: Buffer, sizes: Buffer, kind: int, offset: int
    ) -> int: ...
    def prefault(self, begin: int, end: int) -> None:
        """Touch the pages of [begin, end) of the data range without changing bytes; no GIL."""
    def cuda_chunks(self, library: str, chunk_bytes: int) -> PinnedChunks:
        """For the driver in `library` (RadixError when it is not usable), nothing pinned yet."""
    def close(self) -> None:
        """Refuse further calls; unmap when the last view is gone. Idempotent."""
