# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Geometry, components, error codes and exceptions."""

from __future__ import annotations

import dataclasses
import enum
import json
import pickle
from typing import Any

import numpy as np
import pytest

from radixshmem_core import _core, errors, values
from radixshmem_core.values import ComponentType, Geometry, InsertError

_HYBRID = Geometry(16, 32768, swa_slot_bytes=1024, swa_window_blocks=8, slot_align=1024)


def test_components_and_masks() -> None:
    assert [(kind.name, int(kind)) for kind in ComponentType] == [
        ("FULL", 0),
        ("SWA", 1),
        ("MAMBA", 2),
    ]
    assert issubclass(ComponentType, enum.IntEnum)
    assert values.COMPONENT_MASK_FULL == 1 << ComponentType.FULL == 1
    assert values.COMPONENT_MASK_SWA == 1 << ComponentType.SWA == 2
    assert values.COMPONENT_MASK_MAMBA == 1 << ComponentType.MAMBA == 4


def test_insert_errors_are_the_public_part_of_the_error_table() -> None:
    assert {error.name: int(error) for error in InsertError} == {
        "OK": 0,
        "BAD_REQUEST": 1,
        "MEMPOOL_FULL": 2,
        "BUSY": 3,
        "PINS_FULL": 4,
        "CURSOR_STALE": 5,
        "FULL_PATH_MISSING": 7,
    }
    table = {name: value for name, value, _, _ in _core.error_table()}
    assert {name: value for name, value in table.items() if value < 16} == {
        error.name: int(error) for error in InsertError
    }


def test_every_exception_of_the_error_table_exists() -> None:
    builtin = {"ValueError": ValueError, "TimeoutError": TimeoutError, "IndexError": IndexError}
    for name, _, exception, meaning in _core.error_table():
        assert meaning, name
        assert exception == "" or exception in builtin or hasattr(errors, exception), name


def test_exceptions() -> None:
    assert issubclass(errors.GeometryMismatch, errors.RadixError)
    assert issubclass(errors.GeometryMismatch, RuntimeError)
    assert issubclass(errors.ServerNotReady, errors.RadixError)
    assert not issubclass(errors.RadixError, (ValueError, OSError))


def test_enums_pickle() -> None:
    for member in (ComponentType.SWA, InsertError.BUSY):
        assert pickle.loads(pickle.dumps(member)) is member


def test_geometry_forms() -> None:
    assert Geometry(16, 32768) == Geometry(block_size=16, full_slot_bytes=32768)
    full = Geometry(
        block_size=16,
        full_slot_bytes=32768,
        swa_slot_bytes=1024,
        swa_window_blocks=8,
        mamba_slot_bytes=512,
        slot_align=1,
        register_chunk_tokens=4096,
        fingerprint="model@1",
    )
    assert dataclasses.replace(full, mamba_slot_bytes=0).mamba_slot_bytes == 0
    with pytest.raises(TypeError):
        Geometry(16, 32768, 1024)  # type: ignore[call-arg]
    with pytest.raises(dataclasses.FrozenInstanceError):
        full.block_size = 32  # type: ignore[misc]
    assert not hasattr(full, "__dict__")


def test_to_dict_is_exactly_the_documented_form() -> None:
    assert json.dumps(_HYBRID.to_dict()) == json.dumps(
        {
            "block_size": 16,
            "slot_align": 1024,
            "register_chunk_tokens": 0,
            "pools": {
                "full": {"slot_bytes": 32768, "num_slots": 0},
                "swa": {"slot_bytes": 1024, "num_slots": 0, "window_blocks": 8},
            },
        }
    )
    named = Geometry(1, 2, mamba_slot_bytes=3, fingerprint="f").to_dict({0: 7, 2: 9})
    assert named == {
        "block_size": 1,
        "slot_align": 0,
        "register_chunk_tokens": 0,
        "pools": {
            "full": {"slot_bytes": 2, "num_slots": 7},
            "mamba": {"slot_bytes": 3, "num_slots": 9},
        },
        "fingerprint": "f",
    }


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(1, 1),
        _HYBRID,
        Geometry(256, 1 << 40, mamba_slot_bytes=5, register_chunk_tokens=64, fingerprint="ü"),
    ],
)
def test_from_dict_inverts_to_dict(geometry: Geometry) -> None:
    through_json = json.loads(json.dumps(geometry.to_dict({0: 5, 1: 6, 2: 7})))
    assert Geometry.from_dict(through_json) == geometry


def test_integers_of_numpy_become_plain() -> None:
    geometry = Geometry(np.int64(16), np.uint32(64))  # type: ignore[arg-type]
    assert type(geometry.block_size) is int
    assert geometry == Geometry(16, 64)


def test_slot_bytes_and_mask() -> None:
    class Kind(enum.Enum):
        SWA = 1

        def __int__(self) -> int:
            return self.value

    assert [_HYBRID.slot_bytes(kind) for kind in ComponentType] == [32768, 1024, 0]
    assert _HYBRID.slot_bytes(Kind.SWA) == 1024  # type: ignore[arg-type]
    assert _HYBRID.mask() == 3
    assert Geometry(1, 1, mamba_slot_bytes=1).mask() == 5
    with pytest.raises(ValueError, match="3 is not a valid ComponentType"):
        _HYBRID.slot_bytes(3)


def test_resolve_fills_in_only_zeros() -> None:
    assert Geometry(16, 64).resolve(4096, 8192) == Geometry(
        16, 64, slot_align=4096, register_chunk_tokens=8192
    )
    own = Geometry(16, 64, slot_align=1, register_chunk_tokens=2)
    assert own.resolve(4096, 8192) == own


def test_difference_prints_both_sides_field_by_field() -> None:
    assert _HYBRID.difference(_HYBRID) == ""
    other = dataclasses.replace(_HYBRID, block_size=32, fingerprint="m2")
    assert (
        _HYBRID.difference(other)
        == "block_size: mine 16, theirs 32\nfingerprint: mine '', theirs 'm2'"
    )
    assert "server 16, client 32" in _HYBRID.difference(other, mine="server", theirs="client")


@pytest.mark.parametrize(
    ("mine", "theirs", "lines"),
    [
        (
            '{"model":"a","pools":{"kv":{"bytes":[1],"dtype":"x"}},"tp":1}',
            '{"model":"b","pools":{"kv":{"bytes":[2],"dtype":"x"}},"tp":1,"pp":2}',
            [
                "fingerprint.model: mine 'a', theirs 'b'",
                "fingerprint.pools.kv.bytes: mine [1], theirs [2]",
                "fingerprint.pp: mine None, theirs 2",
            ],
        ),
        ('{"a":1}', '{"a": 1}', ["""fingerprint: mine '{"a":1}', theirs '{"a": 1}'"""]),
        ('{"a":1}', "{a", ["""fingerprint: mine '{"a":1}', theirs '{a'"""]),
        ("[1]", "[2]", ["fingerprint: mine '[1]', theirs '[2]'"]),
        ('{"a":null}', "{}", ["""fingerprint: mine '{"a":null}', theirs '{}'"""]),
        (
            '{"a":1,"b":null}',
            '{"a":true}',
            ["""fingerprint: mine '{"a":1,"b":null}', theirs '{"a":true}'"""],
        ),
        (
            '{"a\\n\\ud800":1,"\u00e9":2}',
            '{"\u00e9":3}',
            [r"fingerprint.a\n\ud800: mine 1, theirs None", "fingerprint.\u00e9: mine 2, theirs 3"],
        ),
    ],
)
def test_of_fingerprints_that_are_json_the_members_that_differ_are_told(
    mine: str, theirs: str, lines: list[str]
) -> None:
    geometry = Geometry(16, 64, fingerprint=mine)
    other = dataclasses.replace(geometry, fingerprint=theirs)
    assert geometry.difference(other).splitlines() == lines
    assert geometry.difference(geometry) == ""


def test_of_fingerprints_that_differ_much_the_first_members_are_told() -> None:
    name = "n" * 10_000
    members = ",".join(f'"{number:04}":1' for number in range(5000))
    mine = Geometry(16, 64, fingerprint=f'{{"{name}":{{{members}}}}}')
    theirs = dataclasses.replace(mine, fingerprint=f'{{"{name}":{{}}}}')
    lines = mine.difference(theirs).splitlines()
    assert len(lines) == 20
    assert lines[-1] == f"fingerprint.{name}.0019: mine 1, theirs None"


def test_fingerprints_of_any_depth_are_compared() -> None:
    deep = ['{"a":' * 10_000 + f"{value}" + "}" * 10_000 for value in (1, 2)]
    mine, theirs = (Geometry(16, 64, fingerprint=text) for text in deep)
    assert mine.difference(theirs).startswith("fingerprint")
    shallow = ['{"a":' * 50 + f"{value}" + "}" * 50 for value in (1, 2)]
    mine, theirs = (Geometry(16, 64, fingerprint=text) for text in shallow)
    assert mine.difference(theirs).startswith("fingerprint.a.a.a.a: mine {")


def test_window_without_a_pool_is_dropped() -> None:
    assert Geometry(16, 64, swa_window_blocks=8) == Geometry(16, 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"block_size": 0}, "Geometry.block_size = 0 must be at least 1"),
        ({"block_size": -1}, "Geometry.block_size = -1"),
        ({"block_size": 1 << 31}, "Geometry.block_size = 2147483648 .* below 2147483648"),
        ({"full_slot_bytes": 0}, "Geometry.full_slot_bytes = 0"),
        ({"full_slot_bytes": 1 << 62}, "Geometry.full_slot_bytes"),
        ({"full_slot_bytes": 1.5}, "Geometry.full_slot_bytes = 1.5 must be an integer"),
        ({"full_slot_bytes": True}, "Geometry.full_slot_bytes = True must be an integer"),
        ({"swa_slot_bytes": -1}, "Geometry.swa_slot_bytes = -1"),
        ({"swa_slot_bytes": 64}, "swa_slot_bytes = 64 needs swa_window_blocks"),
        ({"mamba_slot_bytes": "64"}, "Geometry.mamba_slot_bytes = '64' must be an integer"),
        ({"slot_align": -4096}, "Geometry.slot_align = -4096"),
        ({"register_chunk_tokens": -1}, "Geometry.register_chunk_tokens = -1"),
        ({"fingerprint": b"x"}, "Geometry.fingerprint = b'x' must be a str"),
        ({"fingerprint": "x" * 70000}, "has 70000 bytes"),
    ],
)
def test_bad_geometry_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Geometry(**{"block_size": 16, "full_slot_bytes": 64, **arguments})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pools": None}, r"geometry\['pools'\] = None must be a mapping"),
        ({"pools": {}}, "needs 'block_size' and a pool 'full'"),
        ({"pools": {"full": 3}}, r"geometry\['pools'\]\['full'\] = 3 must be a mapping"),
        ({"pools": {"full": {"num_slots": 3}}}, "lacks 'slot_bytes'"),
        ({"pools": {"full": {"slot_bytes": 3, "window_blocks": 1}}}, "unknown keys"),
        ({"pools": {"full": {"slot_bytes": 3}, "tpu": {}}}, r"unknown keys \['tpu'\]"),
        ({"blocksize": 3}, r"unknown keys \['blocksize'\]"),
        ({"block_size": "16"}, "must be an integer"),
    ],
)
def test_bad_dict_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Geometry.from_dict({**_HYBRID.to_dict(), **change})
