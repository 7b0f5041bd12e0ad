# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Values that both sides of a connection exchange: components, error codes, the geometry."""

from __future__ import annotations

import dataclasses
import itertools
import json
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from radixshmem_core._core import ComponentType, InsertError

__all__ = [
    "COMPONENT_MASK_FULL",
    "COMPONENT_MASK_MAMBA",
    "COMPONENT_MASK_SWA",
    "ComponentType",
    "Geometry",
    "InsertError",
]

COMPONENT_MASK_FULL = 1
COMPONENT_MASK_SWA = 2
COMPONENT_MASK_MAMBA = 4

_MAX_BYTES = 1 << 62  # of one slot, alignment or chunk: offsets stay within 64 bits
_MAX_BLOCK_SIZE = 1 << 31
_MAX_FINGERPRINT_BYTES = 64 * 1024
_TOLD = 20  # members of two fingerprints that differ


@dataclass(frozen=True, slots=True)
class Geometry:
    """Block size and slot sizes of one model; how many slots there are is the server's matter.

    `slot_align` and `register_chunk_tokens` of 0 mean "as the server has it".
    `fingerprint` names what the bytes mean (model revision, dtype, layout, ranks): clients of
    different fingerprints never share a server. Without an SWA pool the window is dropped.
    """

    block_size: int  # tokens
    full_slot_bytes: int
    _: dataclasses.KW_ONLY
    swa_slot_bytes: int = 0  # 0: no such pool
    swa_window_blocks: int = 0
    mamba_slot_bytes: int = 0  # 0: no such pool
    slot_align: int = 0  # bytes
    register_chunk_tokens: int = 0
    fingerprint: str = ""

    def __post_init__(self) -> None:
        for field, least, limit in _INTEGER_FIELDS:
            value = _integer(field, getattr(self, field))
            if not least <= value < limit:
                raise ValueError(
                    f"Geometry.{field} = {value} must be at least {least} and below {limit}"
                )
            object.__setattr__(self, field, value)
        if self.swa_slot_bytes == 0:
            object.__setattr__(self, "swa_window_blocks", 0)
        elif self.swa_window_blocks == 0:
            raise ValueError(
                f"Geometry.swa_slot_bytes = {self.swa_slot_bytes} needs swa_window_blocks of at "
                "least 1: how many of the last blocks the model attends to"
            )
        if not isinstance(self.fingerprint, str):
            raise ValueError(f"Geometry.fingerprint = {self.fingerprint!r} must be a str")
        size = len(self.fingerprint.encode())
        if size > _MAX_FINGERPRINT_BYTES:
            raise ValueError(
                f"Geometry.fingerprint has {size} bytes, at most {_MAX_FINGERPRINT_BYTES} are "
                "accepted: pass a digest of it"
            )

    def slot_bytes(self, component: int) -> int:
        """Unpadded bytes of a slot of this component; 0 if it is not enabled."""
        sizes = (self.full_slot_bytes, self.swa_slot_bytes, self.mamba_slot_bytes)
        return sizes[ComponentType(int(component))]

    def mask(self) -> int:
        """The component mask of the enabled pools."""
        return sum(1 << kind for kind in ComponentType if self.slot_bytes(kind) > 0)

    def resolve(self, server_slot_align: int, server_register_chunk_tokens: int) -> Geometry:
        """The same geometry with the server's values in the place of zeros."""
        return dataclasses.replace(
            self,
            slot_align=self.slot_align or server_slot_align,
            register_chunk_tokens=self.register_chunk_tokens or server_register_chunk_tokens,
        )

    def difference(self, other: Geometry, *, mine: str = "mine", theirs: str = "theirs") -> str:
        """The fields that differ, one a line with both sides; "" when there is none.

        Of two fingerprints that are JSON objects, as the adapters make them: of the first members
        that differ.
        """
        return "\n".join(
            f"{name}: {mine} {own!r}, {theirs} {its!r}"
            for field in dataclasses.fields(self)
            for name, own, its in _told(
                field.name, getattr(self, field.name), getattr(other, field.name)
            )
        )

    def to_dict(self, num_slots: Mapping[int, int] | None = None) -> dict[str, Any]:
        """The form that `status` shows; `num_slots` by component, 0 where not known yet."""
        counts = num_slots or {}
        pools: dict[str, dict[str, int]] = {}
        for kind in ComponentType:
            if self.slot_bytes(kind) > 0:
                pools[kind.name.lower()] = {
                    "slot_bytes": self.slot_bytes(kind),
                    "num_slots": counts.get(kind, 0),
                }
        if "swa" in pools:
            pools["swa"]["window_blocks"] = self.swa_window_blocks
        result: dict[str, Any] = {
            "block_size": self.block_size,
            "slot_align": self.slot_align,
            "register_chunk_tokens": self.register_chunk_tokens,
            "pools": pools,
        }
        if self.fingerprint:
            result["fingerprint"] = self.fingerprint
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Geometry:
        """The inverse of `to_dict`; slot counts are ignored. ValueError for anything else."""
        data = _mapping("geometry", data)
        pools = _mapping("geometry['pools']", data.get("pools"))
        _refuse_unknown("geometry", data, _DICT_KEYS)
        _refuse_unknown("geometry['pools']", pools, {kind.name.lower() for kind in ComponentType})
        if "full" not in pools or "block_size" not in data:
            raise ValueError(
                f"a geometry needs 'block_size' and a pool 'full', got keys {sorted(data)} "
                f"and pools {sorted(pools)}"
            )
        by_name = {name: _pool(name, entry) for name, entry in pools.items()}
        return cls(
            data["block_size"],
            by_name["full"]["slot_bytes"],
            swa_slot_bytes=by_name.get("swa", {}).get("slot_bytes", 0),
            swa_window_blocks=by_name.get("swa", {}).get("window_blocks", 0),
            mamba_slot_bytes=by_name.get("mamba", {}).get("slot_bytes", 0),
            slot_align=data.get("slot_align", 0),
            register_chunk_tokens=data.get("register_chunk_tokens", 0),
            fingerprint=data.get("fingerprint", ""),
        )


# (field, least value, limit)
_INTEGER_FIELDS = (
    ("block_size", 1, _MAX_BLOCK_SIZE),
    ("full_slot_bytes", 1, _MAX_BYTES),
    ("swa_slot_bytes", 0, _MAX_BYTES),
    ("swa_window_blocks", 0, _MAX_BLOCK_SIZE),
    ("mamba_slot_bytes", 0, _MAX_BYTES),
    ("slot_align", 0, _MAX_BYTES),
    ("register_chunk_tokens", 0, _MAX_BYTES),
)
_DICT_KEYS = {"block_size", "slot_align", "register_chunk_tokens", "pools", "fingerprint"}


def _integer(field: str, value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError(f"Geometry.{field} = {value!r} must be an integer")
    try:
        return operator.index(value)
    except TypeError as error:
        raise ValueError(f"Geometry.{field} = {value!r} must be an integer") from error


def _told(name: str, mine: Any, theirs: Any) -> list[tuple[str, Any, Any]]:
    """What `_differing` says, if not more than one can read; of texts of equal members, all."""
    if mine == theirs:
        return []
    return list(itertools.islice(_differing(name, mine, theirs), _TOLD)) or [(name, mine, theirs)]


def _differing(
    name: str, mine: Any, theirs: Any, levels: int = 4
) -> Iterator[tuple[str, Any, Any]]:
    """The name and both sides of what differs: of JSON objects, each member; None is none."""
    own, its = _members(mine), _members(theirs)
    if levels and own is not None and its is not None and own != its:
        for key in sorted(own.keys() | its.keys()):
            member = f"{name}.{repr(key)[1:-1]}"  # whatever the key is: one line that can be sent
            yield from _differing(member, own.get(key), its.get(key), levels - 1)
    elif mine != theirs:
        yield name, mine, theirs


def _members(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _mapping(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} = {value!r} must be a mapping")
    return value


def _pool(name: str, entry: Any) -> Mapping[str, Any]:
    what = f"geometry['pools'][{name!r}]"
    pool = _mapping(what, entry)
    known = {"slot_bytes", "num_slots"} | ({"window_blocks"} if name == "swa" else set())
    _refuse_unknown(what, pool, known)
    if "slot_bytes" not in pool:
        raise ValueError(f"{what} lacks 'slot_bytes': {dict(pool)!r}")
    return pool


def _refuse_unknown(what: str, data: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(map(str, set(data) - known))
    if unknown:
        raise ValueError(f"{what} has unknown keys {unknown}; known are {sorted(known)}")
