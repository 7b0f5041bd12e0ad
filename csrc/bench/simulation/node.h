// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One simulated node: a real tree and its part of the directory, in private memory that is laid out
// like an index region and grows as it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "directory/peer_table.h"
#include "layout/region_header.h"
#include "transport/peer_reader.h"
#include "tree/tree.h"

namespace radixshmem::bench {

inline constexpr std::uint64_t kIncarnation = 0xabcd0001;  // of every simulated node
inline constexpr std::uint32_t kBlockTokens = 16;

// Of a node of `slots` slots with a directory of that many bytes (0 = chosen), a change ring of
// that many entries, and little else.
[[nodiscard]] IndexPlan plan_of(std::uint32_t slots, std::uint64_t directory_bytes,
                                std::uint32_t ring_entries);

// Zeroed pages, which take memory when they are written.
class Pages final {
 public:
  explicit Pages(std::uint64_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  [[nodiscard]] std::byte* base() const noexcept { return base_; }

 private:
  std::byte* base_;
  std::uint64_t bytes_;
};

class Node final {
 public:
  explicit Node(const IndexPlan& plan);

  [[nodiscard]] const Tree& tree() const noexcept { return tree_; }
  [[nodiscard]] std::byte* area(AreaKind kind) const noexcept { return tree_.area(kind); }
  [[nodiscard]] std::byte* base() const noexcept { return memory_.base(); }
  // Where things lie in it, for the record of `rank`.
  [[nodiscard]] PeerInfo info(Rank rank) const noexcept;
  [[nodiscard]] std::uint32_t blocks() const noexcept { return tree_.control().live_blocks.load(); }

  // Returns: how many blocks of `path` are here.
  [[nodiscard]] Position hit(std::span<const BlockHash> path);
  // Stores what is missing of `path`, and evicts for it what was used longest ago. Requires: the
  // path has room in half of the slots.
  // Returns: false when there was no segment for the rest of it.
  bool store(std::span<const BlockHash> path);

 private:
  Pages memory_;
  HeaderView view_;
  Tree tree_;
  Match match_;
};

}  // namespace radixshmem::bench
