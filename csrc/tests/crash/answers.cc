// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tests/crash/answers.h"

#include <algorithm>

namespace radixshmem::crash {

bool expect(Board& board, std::uint32_t index, bool good, const char* what, BlockHash hash,
            std::int32_t slot) {
  if (good) return true;
  board.violate("worker %u: %s: block %016llx, slot %d", index, what,
                static_cast<unsigned long long>(hash), slot);
  return false;
}

bool complete(Board& board, std::uint32_t index, const Hit& hit, const QueryOptions& asked,
              std::uint32_t window_blocks, const std::vector<BlockHash>& path) {
  const Window& window = hit.window;
  const std::uint32_t n = hit.blocks;
  bool good = hit.full_count == ((hit.mask & kMaskFull) != 0 ? n : 0);
  if (asked.aux_from) {
    good &= window.swa_slots.empty() && !window.mamba;
    good &= window.aux_slots.size() == n - std::min(n, *asked.aux_from);
  } else {
    const std::uint32_t wanted = (hit.mask & kMaskSwa) != 0 ? std::min(n, window_blocks) : 0;
    good &= window.mamba.has_value() == ((hit.mask & kMaskMamba) != 0);
    good &= window.swa_slots.size() == wanted && window.aux_slots.empty();
    good &= wanted == 0 || window.swa_start + wanted == n;
  }
  return expect(board, index, good, "incomplete answer", path[n - 1], static_cast<std::int32_t>(n));
}

bool look(Board& board, std::uint32_t index, Held& held, const char* when) {
  const Hit& hit = held.hit;
  held.full.clear();
  held.swa.clear();
  for (std::uint32_t i = 0; i < hit.full_count; ++i) {
    const Seen seen = read_slot(board, Component::kFull, hit.full_slots[i]);
    if (!expect(board, index, holds(seen, Component::kFull, held.path[i]), when, held.path[i],
                hit.full_slots[i])) {
      return false;
    }
    held.full.push_back(seen);
  }
  for (std::size_t i = 0; i < hit.window.swa_slots.size(); ++i) {
    const BlockHash hash = held.path[hit.window.swa_start + i];
    const Seen seen = read_slot(board, Component::kSwa, hit.window.swa_slots[i]);
    if (!expect(board, index, holds(seen, Component::kSwa, hash), when, hash,
                hit.window.swa_slots[i])) {
      return false;
    }
    held.swa.push_back(seen);
  }
  if (hit.window.mamba) {
    const BlockHash hash = held.path[hit.blocks - 1];
    const auto slot = static_cast<std::int32_t>(*hit.window.mamba);
    held.mamba = read_slot(board, Component::kMamba, slot);
    if (!expect(board, index, holds(held.mamba, Component::kMamba, hash), when, hash, slot))
      return false;
  }
  held.aux.clear();
  for (std::size_t i = 0; i < hit.window.aux_slots.size(); ++i) {
    const std::int32_t slot = hit.window.aux_slots[i];
    if (slot < 0) continue;
    const BlockHash hash = held.path[aux_start(hit) + i];
    held.aux.push_back(read_slot(board, aux_of(hit), slot));
    if (!expect(board, index, holds(held.aux.back(), aux_of(hit), hash), when, hash, slot)) {
      return false;
    }
  }
  return true;
}

bool look_again(Board& board, std::uint32_t index, Held& held, const char* when) {
  const std::vector<Seen> full = held.full;
  const std::vector<Seen> swa = held.swa;
  const Seen mamba = held.mamba;
  const std::vector<Seen> aux = held.aux;
  if (!look(board, index, held, when)) return false;
  const bool same = full == held.full && swa == held.swa && mamba == held.mamba && aux == held.aux;
  return expect(board, index, same, "rewritten under a pin", held.path.back(),
                static_cast<std::int32_t>(held.hit.blocks));
}

}  // namespace radixshmem::crash
