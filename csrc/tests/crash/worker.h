// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One client of a campaign: a loop of random operations that verifies every byte it may rely on.
// A wrong byte, a broken promise of a call or an unexpected error is recorded on the board.
#pragma once

#include <cstdint>

#include "tests/crash/board.h"
#include "tests/crash/options.h"

namespace radixshmem::crash {

// Runs until the board says stop. `index` is the worker's place on the board.
void run_worker(Board& board, const Options& options, std::uint32_t index, std::uint64_t seed);

}  // namespace radixshmem::crash
