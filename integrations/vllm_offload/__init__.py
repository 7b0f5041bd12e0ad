# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""vLLM's KV offload connector for radixshmem: see docs/integrations.md."""

from __future__ import annotations

from .connector import RadixShmemConnector
from .spec import RadixShmemOffloadingSpec

__all__ = ["RadixShmemConnector", "RadixShmemOffloadingSpec"]
