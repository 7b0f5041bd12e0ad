// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The bytes of a segment (arena/segment.h) as they were read from a peer: hostile input.
//
// Nothing in them is believed but hashes that equal those of the path; the rest is within bounds,
// and a hint.
// Thread safety: a value; it looks into bytes of somebody else's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "layout/index_plan.h"

namespace radixshmem {

class SegmentImage final {
 public:
  // Returns: nothing when the bytes are no LIVE segment, or one that is longer than `bytes`.
  [[nodiscard]] static std::optional<SegmentImage> of(std::span<const std::byte> bytes,
                                                      const ClassTable& classes) noexcept;

  [[nodiscard]] Position start() const noexcept { return start_; }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  [[nodiscard]] SegmentId parent() const noexcept { return parent_; }
  [[nodiscard]] SideId side() const noexcept { return side_; }
  // Returns: how many entries, from the first on, are blocks of the path, by their whole hashes.
  [[nodiscard]] std::uint32_t matched(std::span<const BlockHash> path) const noexcept;
  // Returns: whether children begin behind the first `entries` entries. Requires: 1..count().
  [[nodiscard]] bool goes_on(std::uint32_t entries) const noexcept;
  // Appends the slots of the first `entries` entries. Requires: at most count().
  // Returns: false, and appends nothing, when one is no slot id.
  bool append_slots(std::uint32_t entries, std::vector<std::int32_t>& out) const;

 private:
  template <typename Word>
  [[nodiscard]] Word at(std::size_t offset) const noexcept {
    Word word;
    std::memcpy(&word, bytes_ + offset, sizeof word);
    return word;
  }

  const std::byte* bytes_ = nullptr;
  std::uint32_t capacity_ = 0;
  std::uint32_t count_ = 0;
  Position start_ = 0;
  SegmentId parent_ = 0;
  SideId side_ = 0;
};

}  // namespace radixshmem
