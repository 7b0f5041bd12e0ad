# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The implementation: import `radixshmem` instead, these modules change without notice."""

from __future__ import annotations

__all__: list[str] = []
