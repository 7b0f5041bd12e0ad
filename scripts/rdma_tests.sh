#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors
#
# What only a machine with RDMA can show, in one boot of scripts/rdma_vm.sh: the transport suite
# over verbs, lookups and reads of slots in a process that is stopped, and a pull between two servers.
# Usage: [BUILD=build/test] [VENV=.venv] scripts/rdma_tests.sh
#        after the C++ tests were built there, and the package was installed
# Exit status: that of scripts/rdma_vm.sh; 77: skipped, it says why.
set -euo pipefail
cd "$(dirname "$0")/.."
TESTS="${BUILD:-build/test}/csrc/tests"
PYTHON="${VENV:-.venv}/bin/python"

scripts/rdma_vm.sh -t 240 bash -c "
  $TESTS/transport_tests --gtest_list_tests | grep -q /verbs || { echo 'no test over verbs'; exit 1; }
  $TESTS/transport_tests --gtest_brief=1 --gtest_filter='*/verbs:Verbs*' &&
  $TESTS/remote_tests --gtest_brief=1 --gtest_filter='*OtherProcess*/verbs' &&
  PYTHONPATH=tests $PYTHON -m e2e.cluster.rdma_smoke"
