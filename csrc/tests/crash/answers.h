// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A pinned answer and whether its slots hold what it says. What is wrong goes to the board, in the
// name of worker `index`; the functions return whether all was well.
#pragma once

#include <cstdint>
#include <vector>

#include "node/session.h"
#include "tests/crash/blocks.h"
#include "tests/crash/board.h"

namespace radixshmem::crash {

// A pinned answer and the bytes that were there when it was new.
struct Held {
  Hit hit;
  std::vector<BlockHash> path;  // of the blocks of the answer
  std::vector<Seen> full;
  std::vector<Seen> swa;
  Seen mamba;
};

bool expect(Board& board, std::uint32_t index, bool good, const char* what, BlockHash hash,
            std::int32_t slot);
// Reads the slots of the answer and remembers what it saw.
bool look(Board& board, std::uint32_t index, Held& held, const char* when);
// Whether the bytes are still those of the look before.
bool look_again(Board& board, std::uint32_t index, Held& held, const char* when);

}  // namespace radixshmem::crash
