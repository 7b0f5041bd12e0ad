# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""How a byte budget becomes slots: the counts, and the plan of the index region that holds them."""

from __future__ import annotations

from dataclasses import dataclass

from . import _core
from .config import ServerConfig
from .values import ComponentType, Geometry

__all__ = ["PoolPlan", "SlotPlan", "index_plan", "plan_slots", "ring_entries", "smallest_plan"]

DEFAULT_RING_ENTRIES = 1 << 16
_MIN_RING_ENTRIES = 1 << 10


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool: `slot_bytes` is what a block needs, `stride_bytes` what a slot takes."""

    num_slots: int
    slot_bytes: int
    stride_bytes: int


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """The pools of a geometry under a budget. `geometry` has no zeros for "the server's" left."""

    geometry: Geometry
    full: PoolPlan
    swa: PoolPlan | None
    mamba: PoolPlan | None
    has_store: bool

    @property
    def slot_region_bytes(self) -> int:
        """What the slots take; 0 for an index-only server."""
        pools = self.pools.values() if self.has_store else ()
        return sum(pool.num_slots * pool.stride_bytes for pool in pools)

    @property
    def pools(self) -> dict[ComponentType, PoolPlan]:
        """The enabled pools."""
        return {
            kind: pool
            for kind, pool in zip(ComponentType, (self.full, self.swa, self.mamba), strict=True)
            if pool is not None
        }

    def geometry_dict(self) -> dict[str, object]:
        """The geometry as clients see it, with the slot counts filled in."""
        return self.geometry.to_dict({kind: pool.num_slots for kind, pool in self.pools.items()})


def plan_slots(config: ServerConfig, geometry: Geometry) -> SlotPlan:
    """Divide the budget. ValueError, with the numbers, when the geometry does not fit it."""
    resolved = geometry.resolve(config.slot_align, config.register_chunk_tokens)
    budget = config.slot_region_bytes
    swa_share = _share(config, resolved, ComponentType.SWA, config.swa_ratio)
    mamba_share = _share(config, resolved, ComponentType.MAMBA, config.mamba_ratio)
    if budget is None:
        return SlotPlan(
            resolved,
            _pool(resolved, ComponentType.FULL, config.index_slots, "index_slots"),
            _index_only(resolved, ComponentType.SWA, config, swa_share),
            _index_only(resolved, ComponentType.MAMBA, config, mamba_share),
            has_store=False,
        )
    swa_bytes = round(swa_share * budget)
    mamba_bytes = round(mamba_share * budget)
    full_bytes = budget - swa_bytes - mamba_bytes
    return SlotPlan(
        resolved,
        _budgeted(resolved, ComponentType.FULL, full_bytes, budget),
        _budgeted(resolved, ComponentType.SWA, swa_bytes, budget) if swa_share else None,
        _budgeted(resolved, ComponentType.MAMBA, mamba_bytes, budget) if mamba_share else None,
        has_store=True,
    )


def _share(
    config: ServerConfig, geometry: Geometry, component: ComponentType, ratio: float
) -> float:
    """The ratio of a component that the geometry has, 0 for one that it has not."""
    needed = geometry.slot_bytes(component)
    if needed and not ratio:
        option = f"{component.name.lower()}_ratio"
        raise ValueError(
            f"the geometry has {component.name} slots of {needed} bytes, but {option} is "
            f"{getattr(config, option)}; start the server with --{option.replace('_', '-')} above 0"
        )
    return ratio if needed else 0.0


def _budgeted(
    geometry: Geometry, component: ComponentType, pool_bytes: int, budget: int
) -> PoolPlan:
    what = f"{pool_bytes} of the {budget} data_bytes"
    return _pool(geometry, component, pool_bytes // _stride(geometry, component), what)


def _index_only(
    geometry: Geometry, component: ComponentType, config: ServerConfig, share: float
) -> PoolPlan | None:
    if not share:
        return None
    count = round(share * config.index_slots)
    return _pool(geometry, component, count, f"{share} of {config.index_slots} index_slots")


def _stride(geometry: Geometry, component: ComponentType) -> int:
    """Bytes that a slot takes: what a block needs, rounded up to slot_align."""
    return -(-geometry.slot_bytes(component) // geometry.slot_align) * geometry.slot_align


def _pool(geometry: Geometry, component: ComponentType, count: int, source: str) -> PoolPlan:
    slot_bytes = geometry.slot_bytes(component)
    stride_bytes = _stride(geometry, component)
    if count <= 0:
        full = component is ComponentType.FULL
        ratio = "" if full else f" or a larger --{component.name.lower()}-ratio"
        raise ValueError(
            f"the budget holds no {component.name} slot: a slot of {slot_bytes} bytes takes "
            f"{stride_bytes} bytes (aligned to {geometry.slot_align}), and the pool gets {source}; "
            f"start the server with a larger --data-bytes{ratio}"
        )
    return PoolPlan(count, slot_bytes, stride_bytes)


def ring_entries(config: ServerConfig) -> int:
    """Size of the change ring: a power of two that holds what was asked for."""
    if config.kvevent_ring_capacity == 0:
        return DEFAULT_RING_ENTRIES
    wanted = max(config.kvevent_ring_capacity, _MIN_RING_ENTRIES)
    return 1 << (wanted - 1).bit_length()


def smallest_plan(config: ServerConfig) -> _core.IndexPlan:
    """The least index that a geometry may ask of this server: one slot where data_bytes decide."""
    plan = _core.IndexPlan()
    plan.block_size = 1
    plan.full_slots = config.index_slots or 1
    plan.max_clients = config.max_clients
    plan.max_pins = config.max_pins
    plan.ring_entries = ring_entries(config)
    plan.directory_bytes = int(config.directory_bytes)
    plan.lock_timeout_ms = max(1, round(config.lock_timeout_s * 1000))
    return plan


def index_plan(config: ServerConfig, slots: SlotPlan, identity: bytes) -> _core.IndexPlan:
    """What the core needs to size and make the index region."""
    plan = smallest_plan(config)
    plan.block_size = slots.geometry.block_size
    plan.full_slots = slots.full.num_slots
    plan.swa_slots = slots.swa.num_slots if slots.swa else 0
    plan.mamba_slots = slots.mamba.num_slots if slots.mamba else 0
    plan.swa_window_blocks = slots.geometry.swa_window_blocks if slots.swa else 0
    plan.identity = identity
    return plan
