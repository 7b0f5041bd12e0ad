// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The paths that a campaign works on, and what it writes into the slots of their blocks.
//
// Few roots and few branches, so that processes meet on the same paths; a path may branch once, at
// any position. A third of the roots begins with hashes that fall into few table lines ("hot"), so
// that lines overflow and entries are moved.
// Bytes: every slot says which block it holds and which write this is. Under the thread sanitizer
// the words are accessed plainly, so that it can judge whether pins order them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layout/words.h"
#include "tests/crash/board.h"

namespace radixshmem::crash {

struct PathShape {
  std::uint32_t roots = 7;         // of long paths
  std::uint32_t short_roots = 90;  // of paths of one to three blocks
  std::uint32_t max_blocks = 40;
  std::uint32_t branches = 4;
  // > 0: most paths are a shared prefix of this many blocks and a short tail, one of many. Each
  // tail wants a large segment for few blocks: segments run out before slots do.
  std::uint32_t fan_blocks = 0;
  std::uint32_t fans = 0;
};

[[nodiscard]] inline BlockHash chain(BlockHash parent, std::uint64_t token) noexcept {
  return mix_hash(parent * 31 + token + 0x1234567) | 1;
}

class PathMaker final {
 public:
  explicit PathMaker(const PathShape& shape) : shape_(shape) {}

  void make(Dice& dice, std::vector<BlockHash>& out) const {
    out.clear();
    if (shape_.fan_blocks != 0 && !dice.one_in(12)) {
      const std::uint32_t prefix = shape_.fan_blocks + dice.below(2) * shape_.fan_blocks;
      BlockHash h = 7;
      for (std::uint32_t i = 0; i < prefix; ++i) out.push_back(h = chain(h, i));
      h = chain(h, 5000 + dice.below(shape_.fans));
      out.push_back(h);
      if (dice.one_in(4)) out.push_back(chain(h, 1));
      return;
    }
    const bool is_short = dice.one_in(2);
    const std::uint32_t root =
        is_short ? 300 + dice.below(shape_.short_roots) : dice.below(shape_.roots);
    const std::uint32_t blocks = 1 + dice.below(is_short ? 3 : shape_.max_blocks);
    const std::uint32_t branch_at = dice.one_in(3) ? ~0u : dice.below(shape_.max_blocks);
    const std::uint32_t branch = dice.below(shape_.branches);
    BlockHash h = root + 100;
    for (std::uint32_t i = 0; i < blocks; ++i) {
      h = chain(h, i >= branch_at ? 1000 + branch : i);
      if (root % 3 == 0) h = heat(h);
      out.push_back(h);
    }
  }

 private:
  // Returns: the first successor of `h` whose two lines are among the first three of eight, as
  // tree/hash_table.h chooses lines. (Were it to choose otherwise, moves would get rare, and the
  // count of kills at segment_table_move would tell.)
  [[nodiscard]] static BlockHash heat(BlockHash h) noexcept {
    for (int i = 0; i < 64; ++i) {
      const std::uint64_t mixed = mix_hash(h);
      if ((mixed & 7) < 3 && (mixed * 0x9e3779b97f4a7c15u >> 32 & 7) < 3) break;
      h = chain(h, 9000);
    }
    return h;
  }

  PathShape shape_;
};

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kPlainBytes = true;
#else
inline constexpr bool kPlainBytes = false;
#endif

[[nodiscard]] inline std::uint64_t load_word(const std::atomic<std::uint64_t>& word) noexcept {
  if constexpr (kPlainBytes) return reinterpret_cast<const std::uint64_t&>(word);
  return word.load(std::memory_order_relaxed);
}
inline void store_word(std::atomic<std::uint64_t>& word, std::uint64_t value) noexcept {
  if constexpr (kPlainBytes) {
    reinterpret_cast<std::uint64_t&>(word) = value;
  } else {
    word.store(value, std::memory_order_relaxed);
  }
}

struct Seen {
  std::uint64_t sealed = 0;
  std::uint64_t generation = 0;
  friend bool operator==(const Seen&, const Seen&) = default;
};

[[nodiscard]] inline std::uint64_t seal(Component c, BlockHash hash,
                                        std::uint64_t generation) noexcept {
  return hash ^ mix_hash(generation + static_cast<std::uint64_t>(c) * 77);
}

inline void write_slot(Board& board, Component c, std::int32_t slot, BlockHash hash,
                       std::uint64_t generation) noexcept {
  SlotBytes& bytes = board.slots[static_cast<std::size_t>(c)][static_cast<std::size_t>(slot)];
  store_word(bytes.sealed, seal(c, hash, generation));
  store_word(bytes.generation, generation);
}

[[nodiscard]] inline Seen read_slot(const Board& board, Component c, std::int32_t slot) noexcept {
  if (slot < 0 || static_cast<std::uint32_t>(slot) >= kMaxSlots) return {};
  const SlotBytes& bytes = board.slots[static_cast<std::size_t>(c)][static_cast<std::size_t>(slot)];
  return {load_word(bytes.sealed), load_word(bytes.generation)};
}

[[nodiscard]] inline bool holds(const Seen& seen, Component c, BlockHash hash) noexcept {
  return seen.generation != 0 && seen.sealed == seal(c, hash, seen.generation);
}

}  // namespace radixshmem::crash
