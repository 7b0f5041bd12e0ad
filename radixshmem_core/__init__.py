# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
"""The implementation of radixshmem. Import the package `radixshmem` instead: these modules may change."""
