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
  std::vector<Seen> aux = {};  // of window.aux_slots
};

// Where window.aux_slots begin, and whose they are.
[[nodiscard]] inline Position aux_start(const Hit& hit) {
  return hit.blocks - static_cast<Position>(hit.window.aux_slots.size());
}
[[nodiscard]] inline Component aux_of(const Hit& hit) {
  return (hit.mask & kMaskSwa) != 0 ? Component::kSwa : Component::kMamba;
}

bool expect(Board& board, std::uint32_t index, bool good, const char* what, BlockHash hash,
            std::int32_t slot);
// Whether an answer to `asked` about `path` has all the slots that it must have.
bool complete(Board& board, std::uint32_t index, const Hit& hit, const QueryOptions& asked,
              std::uint32_t window_blocks, const std::vector<BlockHash>& path);
// Reads the slots of the answer and remembers what it saw.
bool look(Board& board, std::uint32_t index, Held& held, const char* when);
// Whether the bytes are still those of the look before.
bool look_again(Board& board, std::uint32_t index, Held& held, const char* when);

}  // namespace radixshmem::crash
