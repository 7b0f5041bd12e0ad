# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""SGLang's HiCache storage backend for radixshmem: see docs/integrations.md.

The class is imported when it is asked for: SGLang loads the plugin in processes that have no use
for it, and before it has read its own arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .storage import RadixShmemStorage

__all__ = ["RadixShmemStorage"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import storage

        return getattr(storage, name)
    raise AttributeError(f"module {__name__} has no {name}")
