// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What the publisher says of a key, read from the tree without a lock.
//
// Whatever is read is checked like a reader's match: the version of the segment and the arena
// sequence are the same before and after. What is not there (any more, or yet: events come before
// the commit they belong to) is not read. Aux bits are hints and not checked.
// Thread safety: any number of threads.
#pragma once

#include <cstdint>
#include <optional>

#include "directory/directory_words.h"
#include "tree/tree.h"

namespace radixshmem {

struct KeyFacts {
  BlockHash key = 0;
  SegmentRef segment;  // has the block
  SegmentRef parent;   // of that segment
};

// The aux bits of a granule, the g blocks from a key position on, along one path.
struct GranuleAux {
  static constexpr std::uint32_t kSwa = 1;
  static constexpr std::uint32_t kMamba = 2;
  std::uint32_t bits = 0;
  // Where the window that would end in the granule lacks a block; 0 = it lacks none, or there is
  // none. A slot that comes into that segment may complete it.
  SegmentId lacking = 0;
};

class KeyReader final {
 public:
  explicit KeyReader(const Tree& tree) noexcept;

  [[nodiscard]] std::uint32_t grid() const noexcept { return grid_; }
  [[nodiscard]] bool has_aux() const noexcept { return swa_ || mamba_; }

  // Returns: nothing unless `id` is alive and has a block at `position`.
  [[nodiscard]] std::optional<KeyFacts> read(SegmentId id, Position position) const noexcept;
  // The same of the segment with that position on the path that leads to `leaf`.
  [[nodiscard]] std::optional<KeyFacts> read_above(SegmentId leaf,
                                                   Position position) const noexcept;
  // Of the granule at `key_position`, as far as it lies on the path to the end of `leaf`.
  [[nodiscard]] GranuleAux aux(SegmentId leaf, Position key_position) const noexcept;

 private:
  class Ascent;
  [[nodiscard]] std::optional<KeyFacts> read_once(SegmentId id, Position position) const noexcept;
  [[nodiscard]] SegmentId holder_above(SegmentId leaf, Position position) const noexcept;

  const Tree& tree_;
  std::uint32_t grid_;
  std::uint32_t window_;
  bool swa_;
  bool mamba_;
};

}  // namespace radixshmem
