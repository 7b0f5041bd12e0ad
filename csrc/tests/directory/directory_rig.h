// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A directory in private memory, and a reader of it.
#pragma once

#include <array>
#include <set>

#include "directory/directory.h"
#include "directory/holders.h"
#include "tests/layout/test_region.h"

namespace radixshmem {

using Ranks = std::set<std::uint16_t>;

class DirectoryRig final {
 public:
  static constexpr std::uint64_t kDigest = 99;

  // Members 0 to ranks - 1, each in its life 1.
  explicit DirectoryRig(std::uint32_t lines, std::uint16_t ranks = 0)
      : memory_(std::uint64_t{lines} * kCacheLine), directory_(memory_.base(), lines) {
    directory_.clear(kDigest);
    for (std::uint16_t r = 0; r < ranks; ++r) directory_.admit(r, 1);
  }
  Directory& operator*() { return directory_; }
  Directory* operator->() { return &directory_; }

  [[nodiscard]] Holders find(BlockHash key) const {
    const KeyPlace place = place_of(key, directory_.digest());
    const std::array<DirectoryLine, 2> lines{directory_.line(place.line(0, directory_.lines())),
                                             directory_.line(place.line(1, directory_.lines()))};
    return holders_in(lines, place.tag);
  }
  // Ranks of the entries of `key` whose life is present.
  [[nodiscard]] Ranks ranks(BlockHash key) const {
    Ranks out;
    const Holders holders = find(key);
    for (const DirectoryEntry& e : holders.all()) {
      if (directory_.admitted(e.rank, e.incarnation)) out.insert(e.rank);
    }
    return out;
  }

 private:
  GuardedMemory memory_;
  Directory directory_;
};

}  // namespace radixshmem
