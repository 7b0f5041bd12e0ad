# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The exceptions of radixshmem. Which code raises which one: `_core.error_table()`."""

from __future__ import annotations

__all__ = ["GeometryMismatch", "RadixError", "ServerNotReady"]


class RadixError(Exception):
    """Base of all errors that are not a wrong argument (ValueError) or a timeout (TimeoutError)."""


class GeometryMismatch(RadixError, RuntimeError):
    """Two sides disagree on the geometry, the fingerprint or the layout; both are printed."""


class ServerNotReady(RadixError):
    """No radix-server answers under this name, or it has no geometry yet."""
