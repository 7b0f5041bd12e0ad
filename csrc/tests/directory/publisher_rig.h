// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A tree with its publisher, and nodes that keep shards.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "directory/publisher.h"
#include "tests/directory/directory_rig.h"
#include "tests/tree/tree_rig.h"

namespace radixshmem {

// Key positions are the multiples of 4, segments have 16 blocks.
[[nodiscard]] inline IndexPlan grid_plan(std::uint32_t full, std::uint32_t swa = 0,
                                         std::uint32_t mamba = 0, std::uint32_t window = 6) {
  IndexPlan plan = small_plan(full, swa, mamba, window);
  plan.block_size = 64;
  return plan;
}

// A map in which `rank` keeps everything.
[[nodiscard]] inline ShardMap map_of(std::uint16_t rank) {
  return ShardMap(kShards, ShardRanks{rank, kNoShardRank});
}

// Rank 7 publishes, in its life 1.
class PublisherRig {
 public:
  static constexpr Publishing kWho{7, 1, DirectoryRig::kDigest};

  explicit PublisherRig(const IndexPlan& plan = grid_plan(400), std::uint32_t chunk_blocks = 8)
      : rig(plan), publisher(rig.tree(), kWho, options_of(chunk_blocks)) {}

  static PublisherOptions options_of(std::uint32_t chunk_blocks) {
    PublisherOptions options;
    options.chunk_blocks = chunk_blocks;
    return options;
  }
  DirectoryRig& keeper(std::uint16_t rank) {
    auto& at = keepers_[rank];
    if (!at) {
      at.emplace(4096);
      (*at)->admit(kWho.rank, 1);
    }
    return *at;
  }
  // Applies the batches. Returns: how many keys they had.
  std::uint32_t deliver(const std::vector<AddressedBatch>& batches) {
    std::uint32_t keys = 0;
    for (const AddressedBatch& p : batches) {
      const auto done = keeper(p.to)->apply(p.bytes, kWho.rank, 1);
      EXPECT_TRUE(done.ok()) << done.error().message;
      EXPECT_GT(p.sequence, last_sequence);
      last_sequence = p.sequence;
      keys += p.keys;
    }
    return keys;
  }
  std::uint32_t collect() { return deliver(publisher.collect(now, 1'000'000)); }
  std::uint32_t flush() { return deliver(publisher.flush(now)); }
  // Whether keeper `at` names this node for block `position` of `path`, with its true segment.
  [[nodiscard]] bool found(const Path& path, Position position, std::uint16_t at = 0) {
    const auto entry = entry_of(path, position, at);
    if (!entry) return false;
    for (const MatchStep& step : rig.find(path).match.steps) {
      if (position < step.start || position >= step.start + step.count) continue;
      EXPECT_EQ(entry->segment.id, step.segment);
      EXPECT_EQ(entry->segment.size_class, rig.tree().arena().class_of(step.segment));
      const SegmentId parent = rig.tree().arena().segment(step.segment).parent();
      EXPECT_EQ(entry->parent.id, parent);
      if (parent != 0) {
        EXPECT_EQ(entry->parent.size_class, rig.tree().arena().class_of(parent));
      }
    }
    return true;
  }
  [[nodiscard]] std::optional<DirectoryEntry> entry_of(const Path& path, Position position,
                                                       std::uint16_t at = 0) {
    const Holders holders = keeper(at).find(path[position]);
    for (const DirectoryEntry& e : holders.all()) {
      if (e.rank == kWho.rank && e.incarnation == 1) return e;
    }
    return std::nullopt;
  }
  [[nodiscard]] std::uint32_t aux(const Path& path, Position position) {
    const auto entry = entry_of(path, position);
    return entry ? entry->aux : 99;
  }

  TreeRig rig;
  Publisher publisher;
  std::uint64_t now = 1000;
  std::uint64_t last_sequence = 0;

 private:
  std::map<std::uint16_t, std::optional<DirectoryRig>> keepers_;
};

}  // namespace radixshmem
