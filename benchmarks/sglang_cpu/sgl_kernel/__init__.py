# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""In place of SGLang's kernels, whose wheels are for GPUs."""

from __future__ import annotations

from stand_in import stand_in

__version__ = "0.4.10"
__getattr__ = stand_in(__name__)
