# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""SGLang's HiCache storage backend for radixshmem: see docs/integrations.md."""

from __future__ import annotations
