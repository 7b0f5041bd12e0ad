// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Peers whose memory holds anything at all: a lookup neither crashes nor reads out of their
// regions, and finds no block that no peer has.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/remote/cluster_rig.h"

namespace radixshmem {
namespace {

constexpr std::size_t kHostileNodes = 3;
constexpr std::uint32_t kHostileWindow = 24;

class HostilePeersTest : public testing::Test {
 protected:
  HostilePeersTest()
      : cluster_(kHostileNodes, cluster_plan(1024, 256, 16, kHostileWindow),
                 [this](Rank rank, const ClusterNode&) {
                   return std::make_unique<MemoryReader>(std::span<const std::byte>(copy_[rank]));
                 }) {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      const Path path = branch_of(make_path(1, 300), 20 * seed, 50 + seed, 40);
      const std::size_t i = seed % kHostileNodes;
      cluster_.put(i, path);
      cluster_.put_aux(i, Component::kSwa, path, kHostileWindow);
      cluster_.put_aux(i, Component::kMamba, path, 1);
      paths_.push_back(path);
    }
    cluster_.publish_all();
    for (Rank r = 0; r < kHostileNodes; ++r) copy_memory(r);
    cluster_.connect_all(0);
    for (std::size_t i = 0; i < kHostileNodes; ++i) note_words(i);
  }

  void copy_memory(std::size_t i) {
    const auto memory = cluster_.node(i).readable();
    copy_[i].assign(memory.begin(), memory.end());
  }
  // Remembers where something else than zeros lies: changes elsewhere change nothing.
  void note_words(std::size_t i) {
    for (std::size_t at = kHeaderBytes; at < copy_[i].size(); at += 8) {
      const bool peer_table = at < cluster_.node(i).area(AreaKind::kDirectory);
      if (!peer_table && word(i, at) != 0) words_[i].push_back(at);
    }
  }
  [[nodiscard]] std::uint64_t word(std::size_t i, std::size_t at) const {
    std::uint64_t out;
    std::memcpy(&out, copy_[i].data() + at, sizeof out);
    return out;
  }
  void set_word(std::size_t i, std::size_t at, std::uint64_t value) {
    std::memcpy(copy_[i].data() + at, &value, sizeof value);
  }
  // What a confused or malicious peer may have in the place of a word.
  [[nodiscard]] std::uint64_t bad_word(std::size_t i, std::uint64_t old) {
    const std::uint64_t other = word(i, words_[i][random_() % words_[i].size()]);
    switch (random_() % 7) {
      case 0:
        return old ^ (std::uint64_t{1} << (random_() % 64));
      case 1:
        return random_();
      case 2:
        return ~std::uint64_t{0};
      case 3:
        return old + (random_() % 5) - 2;
      case 4:
        return (old & 0xffffffffu) | (other & ~std::uint64_t{0xffffffffu});
      case 5:
        return (other & 0xffffffffu) | (old & ~std::uint64_t{0xffffffffu});
      default:
        return other;
    }
  }
  [[nodiscard]] Position deepest(const Path& path) {
    Position depth = 0;
    for (std::size_t i = 0; i < kHostileNodes; ++i) {
      depth = std::max(depth, cluster_.node(i).rig.hit(path));
    }
    return depth;
  }
  void expect_harmless(const Path& path, std::uint32_t mask) {
    const Position local = cluster_.node(0).rig.hit(path, mask);
    const RemoteHit hit = lookup(cluster_.node(0).peers, cluster_.request(path, local, mask));
    EXPECT_EQ(hit.figures.failures, 0u);  // nothing was read out of a region
    EXPECT_LE(hit.figures.reads, 4096u);
    EXPECT_LE(hit.figures.rounds, 5u);
    EXPECT_LE(hit.common_hit, std::max(local, deepest(path)));
    Position at = local;
    for (const RemoteFragment& fragment : hit.full) {
      EXPECT_LT(fragment.rank, kHostileNodes);
      EXPECT_NE(fragment.rank, 0);
      EXPECT_EQ(fragment.offset, at);
      at += static_cast<Position>(fragment.slots.size());
      for (const std::int32_t slot : fragment.slots) EXPECT_GE(slot, 0);
    }
    EXPECT_EQ(at, hit.common_hit);
    const bool window = hit.common_hit > local && (mask & kMaskSwa) != 0;
    EXPECT_EQ(hit.swa_slots.size(), window ? std::min(hit.common_hit, kHostileWindow) : 0u);
    for (const std::int32_t slot : hit.swa_slots) EXPECT_GE(slot, 0);
    found_ += hit.common_hit > local ? 1 : 0;
  }
  void ask_for_all() {
    for (const Path& path : paths_) {
      for (const std::uint32_t mask : {kMaskFull, kMaskFull | kMaskSwa, kMaskFull | kMaskMamba}) {
        expect_harmless(path, mask);
      }
    }
  }
  [[nodiscard]] static std::size_t times(std::size_t usual) {
    return std::getenv("RADIX_TEST_FULL") != nullptr ? 50 * usual : usual;
  }

  std::array<std::vector<std::byte>, kHostileNodes> copy_;
  std::array<std::vector<std::size_t>, kHostileNodes> words_;
  ClusterRig cluster_;
  std::vector<Path> paths_;
  std::mt19937_64 random_{7};
  std::size_t found_ = 0;
};

TEST_F(HostilePeersTest, AnswersAreRightWithoutDamage) {
  ask_for_all();
  EXPECT_GT(found_, 20u);  // or the tests below say nothing
}

TEST_F(HostilePeersTest, ASideBlockOfAnotherSegmentHasNoSlots) {
  for (std::size_t i = 0; i < kHostileNodes; ++i) {
    const PeerInfo& info = cluster_.node(i).info;
    for (std::uint32_t side = 1; side < info.side_blocks; ++side) {
      const std::uint64_t at = info.side_offset + std::uint64_t{side} * info.side_bytes;
      set_word(i, at, word(i, at) + 1);  // SideHeader::segment is the low half
    }
  }
  for (const Path& path : paths_) expect_harmless(path, kMaskFull | kMaskSwa);
  EXPECT_EQ(found_, 0u);
}

TEST_F(HostilePeersTest, MutatedMemory) {
  for (std::size_t round = 0; round < times(400); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    for (std::size_t i = 0; i < kHostileNodes; ++i) {
      const std::size_t changes = std::size_t{1} << (random_() % 10);
      for (std::size_t c = 0; c < changes; ++c) {
        const std::size_t at = words_[i][random_() % words_[i].size()];
        set_word(i, at, bad_word(i, word(i, at)));
      }
    }
    for (int query = 0; query < 6; ++query) {
      const Path& path = paths_[random_() % paths_.size()];
      expect_harmless(path, 1u | static_cast<std::uint32_t>(random_() % 8));
    }
    for (std::size_t i = 0; i < kHostileNodes; ++i) copy_memory(i);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(found_, 100u);
}

TEST_F(HostilePeersTest, RandomMemory) {
  for (std::size_t round = 0; round < times(20); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    // Directories stay right, so that the rest is looked at.
    for (std::size_t i = 0; i < kHostileNodes; ++i) {
      const std::size_t arena = cluster_.node(i).area(AreaKind::kArena);
      for (const std::size_t at : words_[i]) {
        if (at >= arena) set_word(i, at, random_());
      }
    }
    ask_for_all();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(found_, 0u);
}

// All fields of the peer table are a server's; what it was told of a peer may not fit the peer.
TEST_F(HostilePeersTest, WrongPeerTable) {
  for (std::size_t round = 0; round < times(400); ++round) {
    PeerInfo info = cluster_.node(1 + random_() % 2).info;
    std::array<std::uint64_t*, 4> offsets{&info.directory_offset, &info.arena_offset,
                                          &info.side_offset, &info.table_offset};
    std::array<std::uint32_t*, 6> counts{&info.directory_lines, &info.arena_units,
                                         &info.side_blocks,     &info.side_bytes,
                                         &info.table_lines,     &info.table_lines_max};
    if (random_() % 2 == 0) {
      std::uint64_t& offset = *offsets[random_() % offsets.size()];
      offset = random_() % 2 == 0 ? random_() : random_() % info.peer_readable_bytes;
    } else {
      std::uint32_t& count = *counts[random_() % counts.size()];
      count = static_cast<std::uint32_t>(random_() >> (random_() % 64));
    }
    ASSERT_TRUE(cluster_.node(0).table.set(info));
    expect_harmless(paths_[random_() % paths_.size()], kMaskFull | kMaskSwa);
    ASSERT_TRUE(cluster_.node(0).table.set(cluster_.node(info.rank).info));
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace radixshmem
