# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""What a radix-server does with other nodes: registry, authenticated connections, membership."""

from __future__ import annotations

__all__: list[str] = []
