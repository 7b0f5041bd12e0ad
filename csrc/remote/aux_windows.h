// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// SWA windows and MAMBA checkpoints of a path at one peer, from its side blocks (tree/side_pool.h).
//
// Their bytes are hostile input like all others: a block that is not of the segment that named it
// has no slots.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "remote/lookup_turn.h"
#include "remote/path_cover.h"

namespace radixshmem {

struct AuxWindow {
  Position end = 0;  // blocks [0, end) of the path have what was asked for; 0 = none
  Position swa_start = 0;
  std::vector<std::int32_t> swa_slots;  // of [swa_start, end)
  std::optional<SlotId> mamba;
};

class AuxSearch final {
 public:
  // Looks at blocks [first, last) of what `holder` has of the path.
  AuxSearch(const PathCover& cover, const LookupRequest& request, Rank holder, Position first,
            Position last);

  // Reads the side blocks. Returns: whether that took a round.
  bool read(LookupTurn& turn);
  // Returns: the deepest window that ends in (above, last], where FULL is verified from `above` on.
  [[nodiscard]] AuxWindow find(Position above) const;

 private:
  using Word = std::optional<SlotId>;

  void take(const PathCover::Piece& piece, std::span<const std::byte> block);
  [[nodiscard]] Word word(const std::vector<Word>& words, Position position) const noexcept {
    return position < first_ || position >= last_ ? std::nullopt : words[position - first_];
  }

  const PathCover& cover_;
  const LookupRequest& request_;
  Rank holder_;
  Position first_;
  Position last_;
  std::vector<Word> swa_;
  std::vector<Word> mamba_;
};

}  // namespace radixshmem
