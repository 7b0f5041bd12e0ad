# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""Adapters of inference engines; each needs its engine."""

from __future__ import annotations
