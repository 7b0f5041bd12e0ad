# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""radixshmem: a shared-memory radix index and slots for the KV cache of one node."""

from __future__ import annotations

from radixshmem_core._core import AuxResult, InsertResult, QueryResult
from radixshmem_core._version import __version__
from radixshmem_core.client import RadixClient
from radixshmem_core.config import ServerConfig
from radixshmem_core.errors import GeometryMismatch, RadixError, ServerNotReady
from radixshmem_core.hashing import compute_hashes, fold_page_keys
from radixshmem_core.pull import PullJob, PullResult
from radixshmem_core.server import RadixServer
from radixshmem_core.store import SlotPoolConfig, SlotStore, SlotStoreConfig
from radixshmem_core.values import (
    COMPONENT_MASK_FULL,
    COMPONENT_MASK_MAMBA,
    COMPONENT_MASK_SWA,
    ComponentType,
    Geometry,
    InsertError,
)

from . import _data

__all__ = [
    "COMPONENT_MASK_FULL",
    "COMPONENT_MASK_MAMBA",
    "COMPONENT_MASK_SWA",
    "AuxResult",
    "ComponentType",
    "Geometry",
    "GeometryMismatch",
    "InsertError",
    "InsertResult",
    "PullJob",
    "PullResult",
    "QueryResult",
    "RadixClient",
    "RadixError",
    "RadixServer",
    "ServerConfig",
    "ServerNotReady",
    "SlotPoolConfig",
    "SlotStore",
    "SlotStoreConfig",
    "__version__",
    "_data",
    "compute_hashes",
    "fold_page_keys",
]
