// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Several nodes in one process, each with a tree and a part of the directory in memory that the
// others read; what they hold is published by walking it.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "directory/directory.h"
#include "directory/peer_info.h"
#include "remote/lookup.h"
#include "remote/peer_set.h"
#include "tests/layout/test_region.h"
#include "tests/tree/tree_rig.h"
#include "transport/racing_copy.h"

namespace radixshmem {

// Reads memory of this process.
class MemoryReader final : public PeerReader {
 public:
  explicit MemoryReader(std::span<const std::byte> index) : index_(index) {}

  [[nodiscard]] TransportKind kind() const noexcept override { return TransportKind::kShm; }
  [[nodiscard]] bool post(std::span<const ReadOp> ops) noexcept override {
    if (broken_ || batch_bytes(ops) == 0) return false;
    for (const ReadOp& op : ops) {
      const bool inside = op.region == PeerRegion::kIndex && op.offset <= index_.size() &&
                          op.length <= index_.size() - op.offset;
      if (!inside) broken_ = true;
      if (inside) racing_copy(op.to, index_.data() + op.offset, op.length);
    }
    return true;
  }
  [[nodiscard]] Progress poll() noexcept override {
    return broken_ ? Progress::kFailed : Progress::kDone;
  }
  void abandon() noexcept override {}
  [[nodiscard]] bool broken() const noexcept override { return broken_; }

 private:
  std::span<const std::byte> index_;
  bool broken_ = false;
};

// As the geometry of 16-token blocks gives: S = 64, a key every 16 blocks.
[[nodiscard]] inline IndexPlan cluster_plan(std::uint32_t full = 8192, std::uint32_t swa = 0,
                                            std::uint32_t mamba = 0, std::uint32_t window = 24) {
  IndexPlan plan = small_plan(full, swa, mamba, window);
  plan.segment_blocks = 64;
  plan.ring_entries = 1 << 14;
  return plan;
}

class ClusterNode final {
 public:
  ClusterNode(Rank rank, const IndexPlan& plan, std::uint64_t digest, std::uint64_t incarnation)
      : rig(plan),
        table(base() + area(AreaKind::kPeerTable)),
        directory(base() + area(AreaKind::kDirectory), rig.view().layout.directory_lines),
        peers(table, /*may_mark=*/true) {
    rig.tree().header().incarnation.store(incarnation);
    table.init();
    table.set_own({rank, false, digest});
    directory.clear(digest);
    info = peer_info_of(rig.tree());
    info.rank = rank;
    info.state = PeerState::kLive;
  }

  [[nodiscard]] std::byte* base() const { return rig.memory().base(); }
  [[nodiscard]] std::span<const std::byte> readable() const {
    return {base(), rig.view().layout.peer_readable_bytes};
  }
  [[nodiscard]] std::uint64_t area(AreaKind kind) const {
    return rig.view().layout.area(kind).offset;
  }
  void update_table_lines() { info.table_lines = rig.tree().table().lines_in_use(); }

  TreeRig rig;
  PeerTable table;
  Directory directory;
  PeerSet peers;
  PeerInfo info;
  std::vector<Path> paths;
};

using MakeReader = std::function<std::unique_ptr<PeerReader>(Rank, const ClusterNode&)>;

class ClusterRig final {
 public:
  static constexpr std::uint64_t kDigest = 0x5eed;

  explicit ClusterRig(std::size_t nodes, const IndexPlan& plan = cluster_plan(),
                      MakeReader reader = {})
      : plan_(plan), reader_(std::move(reader)) {
    std::vector<ShardRanks> map(kShards, {kNoShardRank, kNoShardRank});
    for (std::size_t s = 0; s < kShards; ++s) map[s][0] = static_cast<Rank>(s % nodes);
    for (Rank r = 0; r < nodes; ++r) {
      nodes_.push_back(std::make_unique<ClusterNode>(r, plan, kDigest, 0xabcd'0000u + 7 * r));
    }
    for (auto& node : nodes_) {
      node->table.set_shard_map(map);
      for (auto& other : nodes_) {
        EXPECT_TRUE(node->table.set(other->info));
        node->directory.admit(other->info.rank, incarnation16(*other));
      }
    }
  }

  [[nodiscard]] ClusterNode& node(std::size_t i) { return *nodes_[i]; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] const IndexPlan& plan() const { return plan_; }
  [[nodiscard]] std::uint32_t grid() const {
    return key_grid(plan_.block_size, plan_.segment_blocks);
  }
  [[nodiscard]] static std::uint16_t incarnation16(const ClusterNode& node) {
    return static_cast<std::uint16_t>(node.info.incarnation);
  }
  [[nodiscard]] std::unique_ptr<PeerReader> make_reader(Rank rank) {
    if (reader_) return reader_(rank, node(rank));
    return std::make_unique<MemoryReader>(node(rank).readable());
  }
  void connect(std::size_t from, Rank to) {
    const auto adopted = node(from).peers.adopt(to, node(to).info.incarnation, make_reader(to),
                                                std::chrono::steady_clock::now() + kLong);
    ASSERT_TRUE(adopted) << adopted.error().message;
  }
  void connect_all(std::size_t from) {
    for (Rank r = 0; r < size(); ++r) connect(from, r);
  }

  void put(std::size_t i, const Path& path) {
    (void)node(i).rig.put(path);
    node(i).paths.push_back(path);
  }
  // One block at a time.
  void put_slowly(std::size_t i, const Path& path) {
    for (std::size_t n = 1; n <= path.size(); ++n) (void)node(i).rig.put(first_of(path, n));
    node(i).paths.push_back(path);
  }
  void put_aux(std::size_t i, Component c, const Path& path, std::uint32_t n) {
    node(i).rig.put_aux(c, path, n);
  }
  // Publishes every key of the paths that node `i` was given, and takes back all others of it.
  void publish(std::size_t i);
  void publish_all() {
    for (std::size_t i = 0; i < size(); ++i) publish(i);
  }

  [[nodiscard]] LookupRequest request(const Path& path, Position local_hit = 0,
                                      std::uint32_t mask = kMaskFull) const {
    LookupRequest out;
    out.hashes = path;
    out.local_hit = local_hit;
    out.mask = mask;
    out.swa_window_blocks = plan_.swa_window_blocks;
    out.block_size = plan_.block_size;
    out.segment_blocks = plan_.segment_blocks;
    out.timeout = kLong;
    return out;
  }
  // What node `from` finds, with what it has itself as the local hit, checked against the owners.
  RemoteHit find(std::size_t from, const Path& path, std::uint32_t mask = kMaskFull) {
    const Position local = node(from).rig.hit(path, mask);
    RemoteHit hit = lookup(node(from).peers, request(path, local, mask));
    check(path, local, mask, hit);
    return hit;
  }
  // Expects that every slot of the answer is the one that its rank has for this block.
  void check(const Path& path, Position local, std::uint32_t mask, const RemoteHit& hit);

 private:
  static constexpr std::chrono::seconds kLong{20};

  IndexPlan plan_;
  MakeReader reader_;
  std::vector<std::unique_ptr<ClusterNode>> nodes_;
};

inline void ClusterRig::publish(std::size_t i) {
  ClusterNode& owner = node(i);
  Tree& tree = owner.rig.tree();
  std::map<BlockHash, Claim> claims;
  for (const Path& path : owner.paths) {
    const auto found = owner.rig.find(path);
    for (const MatchStep& step : found.match.steps) {
      const SegmentId parent = tree.arena().segment(step.segment).parent();
      for (Position p = step.start; p < step.start + step.count; ++p) {
        if (p % grid() != 0) continue;
        Claim& claim = claims[path[p]];
        claim.rank = static_cast<Rank>(i);
        claim.incarnation = incarnation16(owner);
        claim.segment = {step.segment, tree.arena().class_of(step.segment)};
        claim.parent = {parent, parent != 0 ? tree.arena().class_of(parent) : 0};
      }
    }
    for (Position n = 1; n <= found.match.end; ++n) {
      Claim& claim = claims[path[(n - 1) / grid() * grid()]];
      const Path part = first_of(path, n);
      const bool swa = tree.enabled(Component::kSwa);
      const bool mamba = tree.enabled(Component::kMamba);
      if (swa && owner.rig.hit(part, kMaskFull | kMaskSwa) == n) claim.aux |= 1;
      if (mamba && owner.rig.hit(part, kMaskFull | kMaskMamba) == n) claim.aux |= 2;
    }
  }
  for (auto& other : nodes_) other->directory.drop_rank(static_cast<Rank>(i));
  for (const auto& [key, claim] : claims) {
    const KeyPlace place = place_of(key, kDigest);
    for (const Rank rank : owner.table.shard_ranks(place.shard)) {
      if (rank != kNoShardRank) node(rank).directory.publish(key, claim);
    }
  }
  owner.update_table_lines();
  for (auto& other : nodes_) EXPECT_TRUE(other->table.set(owner.info));
}

inline void ClusterRig::check(const Path& path, Position local, std::uint32_t mask,
                              const RemoteHit& hit) {
  Position at = local;
  for (const RemoteFragment& fragment : hit.full) {
    ASSERT_EQ(fragment.offset, at);
    ASSERT_FALSE(fragment.slots.empty());
    const Slots theirs = node(fragment.rank).rig.find(path).slots;
    at += static_cast<Position>(fragment.slots.size());
    ASSERT_LE(at, theirs.size());
    EXPECT_TRUE(
        std::equal(fragment.slots.begin(), fragment.slots.end(), theirs.begin() + fragment.offset));
  }
  ASSERT_EQ(at, hit.common_hit);
  const bool more = hit.common_hit > local;
  const Path part = first_of(path, hit.common_hit);
  if (more && (mask & kMaskSwa) != 0) {
    const auto theirs = node(hit.swa_rank).rig.find(part, kMaskFull | kMaskSwa);
    ASSERT_EQ(theirs.match.end, hit.common_hit);
    EXPECT_EQ(theirs.window.swa_start, hit.swa_start);
    EXPECT_EQ(theirs.window.swa_slots, hit.swa_slots);
  }
  if (more && (mask & kMaskMamba) != 0) {
    ASSERT_TRUE(hit.mamba.has_value());
    const auto theirs = node(hit.mamba->rank).rig.find(part, kMaskFull | kMaskMamba);
    ASSERT_EQ(theirs.match.end, hit.common_hit);
    EXPECT_EQ(theirs.window.mamba, hit.mamba->slot);
  }
}

}  // namespace radixshmem
