// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Round 1: who says to hold the keys of a path.
//
// Kept are entries of peers that are live, in the life that the entry names, and readable; of the
// own node there is nothing to learn.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "directory/holders.h"
#include "remote/lookup_turn.h"

namespace radixshmem {

class KeyClaims final {
 public:
  struct Key {
    Position position = 0;
    std::uint32_t first = 0;  // of its entries
    std::uint32_t count = 0;
  };

  // Reads the directory lines of the keys at `from` and behind it; counts the rounds.
  // Requires: grid > 0.
  void read(LookupTurn& turn, const LookupRequest& request, Position from, std::uint32_t grid,
            LookupFigures& figures);

  // In order of their positions.
  [[nodiscard]] std::span<const Key> keys() const noexcept { return keys_; }
  [[nodiscard]] std::span<const DirectoryEntry> holders(std::size_t key) const noexcept {
    return std::span(entries_).subspan(keys_[key].first, keys_[key].count);
  }
  // Returns: the entry of `rank` for this key; nullptr if it has none.
  [[nodiscard]] const DirectoryEntry* of(Rank rank, std::size_t key) const noexcept;

  // Where a holder says to be deepest.
  struct Deepest {
    Rank rank = kNoRank;
    std::size_t key = 0;
    std::uint32_t named = 0;  // keys that it is named for
  };
  // Returns: every rank that is named with all bits of `aux`, deepest first, then the one that is
  // named for more keys.
  [[nodiscard]] std::vector<Deepest> deepest(std::uint32_t aux) const;

 private:
  void read_some(LookupTurn& turn, const LookupRequest& request,
                 std::span<const Position> positions, LookupFigures& figures);
  void keep(LookupTurn& turn, Position position, const Holders& holders, LookupFigures& figures);

  std::vector<Key> keys_;
  std::vector<DirectoryEntry> entries_;
};

}  // namespace radixshmem
