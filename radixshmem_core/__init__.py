# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The implementation: import `radixshmem` instead, these modules change without notice."""

from __future__ import annotations

import importlib.util

__all__: list[str] = []

if importlib.util.find_spec(f"{__name__}._core") is None:
    raise ImportError(
        f"{__path__[0]} has no compiled core: Python found the source folder before the installed "
        "package. Run it from another folder, or install the repository with `pip install -e .`",
        name=f"{__name__}._core",
        path=__path__[0],
    )
