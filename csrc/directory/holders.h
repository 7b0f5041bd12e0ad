// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// From the two lines of a key, as they were read from whoever keeps its shard, to its holders.
//
// The bytes are hostile input: whatever they are, the answer has at most 8 entries, and they are
// hints. An incarnation that is not the peer's present one is for the caller to leave out.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "directory/directory_words.h"

namespace radixshmem {

inline constexpr std::uint32_t kMaxEntriesOfKey = 2 * kEntriesPerLine;

struct Holders {
  std::array<DirectoryEntry, kMaxEntriesOfKey> entry;
  std::uint32_t count = 0;

  [[nodiscard]] std::span<const DirectoryEntry> all() const& noexcept {
    return {entry.data(), count};
  }
  std::span<const DirectoryEntry> all() const&& = delete;
};

// Returns: the entries of `tag` that name a segment, each life of a rank once (the two lines of a
// key may be the same one).
[[nodiscard]] inline Holders holders_in(std::span<const DirectoryLine, 2> lines,
                                        std::uint32_t tag) noexcept {
  Holders found;
  for (const DirectoryLine& line : lines) {
    for (std::uint32_t i = 0; i < kEntriesPerLine; ++i) {
      if (line.words[2 * i] == 0) continue;
      const auto entry = DirectoryEntry::unpack(line.words[2 * i], line.words[2 * i + 1]);
      if (entry.tag != tag || entry.segment.id == 0) continue;
      const auto known = found.all();
      const bool twice = std::any_of(known.begin(), known.end(), [&](const DirectoryEntry& e) {
        return e.rank == entry.rank && e.incarnation == entry.incarnation;
      });
      if (!twice) found.entry[found.count++] = entry;
    }
  }
  return found;
}

}  // namespace radixshmem
