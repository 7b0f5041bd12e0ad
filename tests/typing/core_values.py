# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Types of the values, as mypy must see them; checked by `make test`, never run."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

from radixshmem_core._core import ComponentType as CoreComponentType
from radixshmem_core.hashing import compute_hashes
from radixshmem_core.values import COMPONENT_MASK_FULL, ComponentType, Geometry

geometry = Geometry(16, 32768, swa_slot_bytes=1024, swa_window_blocks=8)
assert_type(geometry.block_size, int)
assert_type(geometry.to_dict(), dict[str, Any])
assert_type(geometry.resolve(4096, 4096), Geometry)
assert_type(geometry.difference(geometry), str)
assert_type(COMPONENT_MASK_FULL, int)
assert_type(compute_hashes([1, 2], 2, namespace=b"x", parent=np.uint64(3)), npt.NDArray[np.uint64])

kind: CoreComponentType = ComponentType.FULL

Geometry(16, 32768, 1024)  # type: ignore[call-arg]
compute_hashes([1], 1, b"x")  # type: ignore[call-arg]
geometry.block_size = 3  # type: ignore[misc]
