# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What this installation can move data between nodes with."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["TRANSFER_BACKENDS"]

if TYPE_CHECKING:
    TRANSFER_BACKENDS: tuple[str, ...]
    """Data planes usable here, in order of preference."""


def __getattr__(name: str) -> tuple[str, ...]:
    if name != "TRANSFER_BACKENDS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from radixshmem_core.cluster.planes import usable_backends  # looks for packages, so: when asked

    globals()[name] = usable_backends()
    return usable_backends()
