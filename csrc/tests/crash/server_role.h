// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The server of a campaign: makes the index or adopts it from its killed predecessor, reaps dead
// clients, releases quarantine. It may be killed at any point; the supervisor starts the next.
#pragma once

#include <cstdint>

#include "node/index_server.h"
#include "tests/crash/board.h"
#include "tests/crash/options.h"

namespace radixshmem::crash {

// One round of reaping, as every server does it. `quarantine_odds`: one reap in so many does not
// know that the process has exited.
void reap_round(Board& board, IndexServer& server, Session& session, Dice& dice,
                std::uint32_t quarantine_odds);

// Runs until board.server_stop. `first`: make the index. `mortal`: die at fault points.
void run_server(Board& board, const Options& options, std::uint64_t seed, bool first, bool mortal);

// When all workers are gone: adopts, reaps them, releases quarantine, sweeps, and checks that
// nothing is left behind; then deletes the index.
void run_final_server(Board& board, const Options& options);

}  // namespace radixshmem::crash
