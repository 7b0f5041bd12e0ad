# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Byte sizes as people write them: "64G", "1.5T", 4096. Suffixes are powers of 1024."""

from __future__ import annotations

import re
import reprlib

__all__ = ["format_size", "parse_size"]

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGTP]?)(?:I?B)?\s*", re.IGNORECASE)
_MAX_DIGITS = 40
_TOO_MUCH = "it must be below 8192P, which is 2**63 bytes"


def parse_size(value: int | str, what: str) -> int:
    """The number of bytes that `value` names. ValueError naming `what` for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{what} is {value!r}; give a number of bytes or text such as '64G'")
    if isinstance(value, int):
        size = value
    else:
        match = _SIZE.fullmatch(value)
        if match is None:
            raise ValueError(f"{what} is {value!r}; give a size such as 4096, '64G' or '1.5T'")
        if len(match[1]) > _MAX_DIGITS:
            raise ValueError(f"{what} is {reprlib.repr(value)}; {_TOO_MUCH}")
        factor = 1024 ** _UNITS[match[2].upper()]
        size = round(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor
    if size < 0:
        raise ValueError(f"{what} is negative; give a number of bytes or text such as '64G'")
    if size >= 1 << 63:
        raise ValueError(f"{what} is 2**{size.bit_length() - 1} or more; {_TOO_MUCH}")
    return size


def format_size(size_bytes: float) -> str:
    """`size_bytes` for a person: "12.5 GiB"."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"
