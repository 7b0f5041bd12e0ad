# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What one engine of the demo counts."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["EngineNumbers"]


@dataclass(slots=True)
class EngineNumbers:
    """Blocks, unless the name says otherwise."""

    requests: int = 0
    referenced: int = 0
    hit: int = 0
    remote: int = 0
    """Of the hit, what came from other nodes."""
    remote_bytes: int = 0
    remote_s: float = 0.0
    inserted: int = 0
    not_stored: int = 0
    wrong_bytes: int = 0
    first_wrong: str = ""
    refused: dict[str, int] = field(default_factory=dict)
    copied_out_bytes: int = 0
    copied_in_bytes: int = 0
    copy_out_s: float = 0.0
    copy_in_s: float = 0.0
    began_s: float = 0.0
    """On the machine's monotonic clock, as `ended_s`."""
    ended_s: float = 0.0
    query_s: list[float] = field(default_factory=list)
    allocate_s: list[float] = field(default_factory=list)
    insert_s: list[float] = field(default_factory=list)
