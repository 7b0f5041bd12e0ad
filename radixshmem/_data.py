# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What this installation can move data between nodes with."""

from __future__ import annotations

__all__ = ["TRANSFER_BACKENDS"]

TRANSFER_BACKENDS: tuple[str, ...] = ()
"""Data planes usable here, in order of preference."""
