# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""In place of torchvision, whose wheels on PyPI do not load beside PyTorch for the CPU."""

from __future__ import annotations

from stand_in import stand_in

__version__ = "0.28.0"
__getattr__ = stand_in(__name__)
