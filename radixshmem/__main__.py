# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""`python -m radixshmem`: the radix-server command."""

from __future__ import annotations

import sys

from radixshmem_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
