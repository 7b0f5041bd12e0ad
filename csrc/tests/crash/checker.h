// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The client of a campaign that is never killed: it keeps the index adoptable, walks the invariants
// under the lock every 100 ms, compares the bytes of every tree slot and the change events with the
// tree, and (when asked) stops lock owners for a while.
#pragma once

#include "tests/crash/board.h"
#include "tests/crash/options.h"

namespace radixshmem::crash {

// Runs until board.stop, then until board.server_stop.
void run_checker(Board& board, const Options& options);

}  // namespace radixshmem::crash
