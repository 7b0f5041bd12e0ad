# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The version of radixshmem, read by the build too."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
