# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The two regions of a server: made for a geometry, adopted from a dead server, or cleared away.

All functions block (they reserve memory, rebuild, check) and run outside the event loop.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

from . import _core
from .config import ServerConfig
from .errors import GeometryMismatch, RadixError, ServerNotReady
from .host import access_of_group, check_memory
from .identity import Identity
from .ownership import FileLock, region_file
from .plan import SlotPlan, index_plan
from .store import SlotPoolConfig, SlotStore, SlotStoreConfig
from .values import ComponentType

__all__ = ["Regions", "adopt_regions", "clear_leftovers", "create_regions", "data_name_of"]

_log = logging.getLogger("radixshmem.server")


@dataclass(slots=True)
class Regions:
    """The mapped regions of a server that has a geometry."""

    index: _core.Index
    identity: Identity
    index_lock: FileLock
    store: SlotStore | None
    store_lock: FileLock | None

    def close(self, owner: _core.IndexServer) -> None:
        """Delete both regions and tell clients. Their mappings stay until they go.

        The name goes last: whoever takes it finds nothing of ours.
        """
        if self.store is not None:
            self.store.close()
            SlotStore.destroy(self.identity.data_name, self.identity.hugepage_path)
        self._release()
        owner.close()  # closes the index with it

    def leave(self) -> None:
        """Let go of both regions as a dying server would: the next one finds all of it."""
        self.index.close()
        if self.store is not None:
            self.store.close()
        self._release()

    def _release(self) -> None:
        self.index_lock.release()
        if self.store_lock is not None:
            self.store_lock.release()


def data_name_of(config: ServerConfig) -> str:
    return config.data_name or f"{config.name}_data"


def clear_leftovers(owner: _core.IndexServer, config: ServerConfig) -> None:
    """Delete what a dead server of this name left. RadixError if another server owns a part."""
    data_name = data_name_of(config)
    if config.data_name:
        _check_is_slot_region(data_name, config.hugepage_path)
    files = [region_file(config.name), region_file(data_name, config.hugepage_path)]
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            FileLock(path).release()
    found = owner.found()
    if found != "none":
        _delete_slots_of(config, data_name)
        _log.warning("%s: removing an index region left by a dead server (%s)", config.name, found)
        owner.reclaim()
    if SlotStore.destroy(data_name, config.hugepage_path):
        _log.warning("%s: removed the slot region %s left there", config.name, data_name)


def _delete_slots_of(config: ServerConfig, data_name: str) -> None:
    """Delete the slots of the dead index when they lie elsewhere than this config has them."""
    try:
        index = _core.Index.attach(config.name, "", True)
        identity = Identity.decode(index.identity, config.name)
        index.close()
    except (RadixError, ValueError):
        return  # it does not say what it had
    where = (identity.data_name, identity.hugepage_path)
    if not identity.data_name or where == (data_name, config.hugepage_path):
        return
    try:
        store = SlotStore.attach(*where, timeout_ms=0, read_only=True)
        ours = store.nonce == identity.nonce
        store.close()
        if ours:
            FileLock(region_file(*where)).release()
            SlotStore.destroy(*where)
            _log.warning("%s: removed the slot region %s of its dead server", config.name, where[0])
    except (RadixError, ValueError, FileNotFoundError) as error:
        _log.info("%s: its former slots %s are left alone: %s", config.name, where[0], error)


def _check_is_slot_region(name: str, hugepage_path: str) -> None:
    """RadixError for a file under a name of the user's choice that may be anything."""
    try:
        SlotStore.attach(name, hugepage_path, timeout_ms=0, read_only=True).close()
    except (ServerNotReady, GeometryMismatch):
        return  # none, one whose maker died, one of another version
    except RadixError as error:
        raise RadixError(
            f"data_name is {name}, but that file is no slot region and is left alone ({error}); "
            "choose another data_name"
        ) from error


def create_regions(owner: _core.IndexServer, config: ServerConfig, slots: SlotPlan) -> Regions:
    """Make both regions and publish the index. Undoes the first when the second fails."""
    identity = Identity.make(config, data_name_of(config), slots)
    plan = index_plan(config, slots, identity.encode())
    check_memory(config, plan, slots.slot_region_bytes)  # before anything is made
    store = lock = None
    with contextlib.ExitStack() as undo:
        if slots.has_store:
            store = _create_store(config, slots, identity)
            undo.callback(SlotStore.destroy, identity.data_name, identity.hugepage_path)
            undo.callback(store.close)
            lock = FileLock(region_file(identity.data_name, identity.hugepage_path))
            undo.callback(lock.release)
        index = owner.create(plan, config.prefault)
        index_lock = FileLock(region_file(config.name))
        undo.pop_all()
    return Regions(index, identity, index_lock, store, lock)


def _create_store(config: ServerConfig, slots: SlotPlan, identity: Identity) -> SlotStore:
    mode, gid = access_of_group(config.group)
    pools = {
        kind.name.lower(): SlotPoolConfig(num_slots=pool.num_slots, slot_bytes=pool.slot_bytes)
        for kind, pool in slots.pools.items()
    }
    return SlotStore.create(
        SlotStoreConfig(
            identity.data_name,
            full=pools["full"],
            swa=pools.get("swa"),
            mamba=pools.get("mamba"),
            slot_align=slots.geometry.slot_align,
            hugepage_path=identity.hugepage_path,
            prefault=False,
            mode=mode,
            gid=gid,
            nonce=identity.nonce,
        )
    )


def adopt_regions(owner: _core.IndexServer, config: ServerConfig) -> Regions:
    """Take over the regions of a dead server whose clients live on, after a rebuild and check.

    RadixError when the index or the slots do not hold what they promise: clear them away then.
    """
    index = owner.adopt()
    store = lock = None
    with contextlib.ExitStack() as undo:
        index_lock = FileLock(region_file(config.name))
        undo.callback(index_lock.release)
        try:
            identity = Identity.decode(index.identity, config.name)
            if identity.data_name:
                lock = FileLock(region_file(identity.data_name, identity.hugepage_path))
                undo.callback(lock.release)
                store = SlotStore.attach(identity.data_name, identity.hugepage_path)
                undo.callback(store.close)
                _check_store(store, identity)
        except (RadixError, FileNotFoundError) as error:
            raise RadixError(f"its slot region cannot be adopted: {error}") from error
        undo.pop_all()
    _warn_of_changes(config, identity)
    return Regions(index, identity, index_lock, store, lock)


def _check_store(store: SlotStore, identity: Identity) -> None:
    if store.nonce != identity.nonce:
        raise RadixError(
            f"slot region {identity.data_name} has nonce {store.nonce}, the index names "
            f"{identity.nonce}"
        )
    pools = identity.geometry["pools"]
    for kind in ComponentType:
        wanted = pools.get(kind.name.lower(), {}).get("num_slots", 0)
        present = store.pool(kind).num_slots if store.pool_mask >> kind & 1 else 0
        if wanted != present:
            raise RadixError(
                f"slot region {identity.data_name} has {present} {kind.name} slots, the index "
                f"names {wanted}"
            )


def _warn_of_changes(config: ServerConfig, identity: Identity) -> None:
    adopted = {
        "data_bytes": (identity.data_bytes, config.slot_region_bytes),
        "slot_align": (identity.slot_align, config.slot_align),
        "register_chunk_tokens": (identity.register_chunk_tokens, config.register_chunk_tokens),
        "hugepage_path": (identity.hugepage_path, config.hugepage_path),
    }
    for option, (old, new) in adopted.items():
        if old != new:
            _log.warning(
                "%s: %s stays %s as in the adopted cache; the configured %s takes effect when "
                "the server starts without living clients",
                config.name,
                option,
                old,
                new,
            )
