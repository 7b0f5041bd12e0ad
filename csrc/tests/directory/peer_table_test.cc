// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/peer_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/layout/test_region.h"

namespace radixshmem {
namespace {

// A record whose every field follows from `value`.
PeerInfo peer_of(std::uint16_t rank, std::uint32_t value) {
  PeerInfo p;
  p.rank = rank;
  p.state = value % 2 == 0 ? PeerState::kLive : PeerState::kOther;
  p.warming = value % 3 == 0;
  p.incarnation = std::uint64_t{value} << 32 | 1;
  p.peer_readable_bytes = std::uint64_t{value} + 2;
  p.directory_offset = std::uint64_t{value} + 3;
  p.arena_offset = std::uint64_t{value} + 4;
  p.side_offset = std::uint64_t{value} + 5;
  p.table_offset = std::uint64_t{value} + 6;
  p.directory_lines = value + 7;
  p.arena_units = value + 8;
  p.side_blocks = value + 9;
  p.side_bytes = value + 10;
  p.table_lines = value + 11;
  p.table_lines_max = value + 12;
  return p;
}

bool same(const PeerInfo& a, const PeerInfo& b) {
  return a.rank == b.rank && a.state == b.state && a.warming == b.warming &&
         a.incarnation == b.incarnation && a.peer_readable_bytes == b.peer_readable_bytes &&
         a.directory_offset == b.directory_offset && a.arena_offset == b.arena_offset &&
         a.side_offset == b.side_offset && a.table_offset == b.table_offset &&
         a.directory_lines == b.directory_lines && a.arena_units == b.arena_units &&
         a.side_blocks == b.side_blocks && a.side_bytes == b.side_bytes &&
         a.table_lines == b.table_lines && a.table_lines_max == b.table_lines_max;
}

class PeerTableTest : public ::testing::Test {
 protected:
  PeerTableTest() : memory_(kPeerTableBytes), table_(memory_.base()) {}

  [[nodiscard]] PeerTableArea& area() { return *reinterpret_cast<PeerTableArea*>(memory_.base()); }

  GuardedMemory memory_;
  PeerTable table_;
};

TEST_F(PeerTableTest, ANewRegionHasNoCluster) {
  EXPECT_FALSE(table_.own());
  EXPECT_FALSE(table_.get(0));
  std::vector<PeerInfo> peers{PeerInfo{}};
  table_.peers(peers);
  EXPECT_TRUE(peers.empty());
}

TEST_F(PeerTableTest, GivesBackWhatWasSet) {
  table_.init();
  ASSERT_TRUE(table_.set(peer_of(5, 100)));
  ASSERT_TRUE(table_.set(peer_of(0, 33)));
  ASSERT_TRUE(table_.set(peer_of(kMaxPeers - 1, 9)));
  const auto five = table_.get(5);
  ASSERT_TRUE(five);
  EXPECT_TRUE(same(*five, peer_of(5, 100)));
  EXPECT_FALSE(table_.get(4));
  std::vector<PeerInfo> peers;
  table_.peers(peers);
  ASSERT_EQ(peers.size(), 3u);
  EXPECT_TRUE(same(peers[0], peer_of(0, 33)));
  EXPECT_TRUE(same(peers[2], peer_of(kMaxPeers - 1, 9)));
  table_.forget(5);
  EXPECT_FALSE(table_.get(5));
  table_.init();
  table_.peers(peers);
  EXPECT_TRUE(peers.empty());
}

TEST_F(PeerTableTest, ARankWithoutARecordIsRefusedAndTold) {
  const auto refused = table_.set(peer_of(kMaxPeers, 1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::INVALID_ARGUMENT);
  EXPECT_NE(refused.error().message.find("rank 1023"), std::string::npos);
  EXPECT_FALSE(table_.get(kMaxPeers));
  EXPECT_FALSE(table_.get(0xffff));
  table_.forget(0xffff);
  table_.suspect(0xffff, 1);
  EXPECT_EQ(table_.suspect_until(0xffff), 0u);
}

TEST_F(PeerTableTest, ShardsHaveNoHolderUntilTheyAreMapped) {
  table_.init();
  EXPECT_EQ(table_.shard_ranks(0), (ShardRanks{kNoShardRank, kNoShardRank}));
  std::vector<ShardRanks> map(kShards);
  for (std::uint32_t s = 0; s < kShards; ++s) {
    map[s] = {static_cast<std::uint16_t>(s % 7), static_cast<std::uint16_t>(s)};
  }
  table_.set_shard_map(map);
  for (std::uint32_t s = 0; s < kShards; s += 97) {
    EXPECT_EQ(table_.shard_ranks(static_cast<std::uint16_t>(s)), map[s]);
  }
}

TEST_F(PeerTableTest, OwnIsWhatWasSet) {
  table_.init();
  EXPECT_FALSE(table_.own());
  table_.set_own({7, false, 0xdeadbeefcafe});
  auto own = table_.own();
  ASSERT_TRUE(own);
  EXPECT_EQ(own->rank, 7);
  EXPECT_EQ(own->digest, 0xdeadbeefcafeu);
  EXPECT_FALSE(own->draining);
  table_.set_own({7, true, 1});
  own = table_.own();
  ASSERT_TRUE(own);
  EXPECT_TRUE(own->draining);
}

TEST_F(PeerTableTest, SuspicionIsOfOneIncarnation) {
  table_.init();
  ASSERT_TRUE(table_.set(peer_of(3, 10)));
  table_.suspect(3, 123);
  EXPECT_EQ(table_.suspect_until(3), 123u);
  PeerInfo update = peer_of(3, 10);
  update.warming = true;
  ASSERT_TRUE(table_.set(update));
  EXPECT_EQ(table_.suspect_until(3), 123u) << "the same life is as suspect as before";
  ASSERT_TRUE(table_.set(peer_of(3, 12)));
  EXPECT_EQ(table_.suspect_until(3), 0u);
  table_.suspect(3, 456);
  table_.forget(3);
  EXPECT_EQ(table_.suspect_until(3), 0u);
}

TEST_F(PeerTableTest, ARecordOfAWriterThatDiedIsAbsentUntilItIsWrittenAgain) {
  table_.init();
  ASSERT_TRUE(table_.set(peer_of(3, 10)));
  table_.set_own({1, false, 5});
  area().peers[3].sequence.fetch_add(1);  // odd
  area().header.sequence.fetch_add(1);
  EXPECT_FALSE(table_.get(3));
  EXPECT_FALSE(table_.own());
  ASSERT_TRUE(table_.set(peer_of(3, 20)));
  table_.set_own({1, false, 6});
  const auto peer = table_.get(3);
  ASSERT_TRUE(peer);
  EXPECT_TRUE(same(*peer, peer_of(3, 20)));
  EXPECT_TRUE(table_.own());
}

TEST_F(PeerTableTest, AReaderNeverSeesHalfOfAChange) {
  table_.init();
  ASSERT_TRUE(table_.set(peer_of(9, 1)));
  table_.set_own({9, false, 9});
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint32_t value = 2; !stop.load(std::memory_order_relaxed); ++value) {
      EXPECT_TRUE(table_.set(peer_of(9, value & 0xffffff)));
      table_.set_own({static_cast<std::uint16_t>(value), false, value & 0xffff});
    }
  });
  int read = 0;
  for (int tries = 0; tries < 2'000'000 && read < 20'000; ++tries) {
    const auto own = table_.own();
    if (own) {
      EXPECT_EQ(own->rank, own->digest);
    }
    const auto peer = table_.get(9);
    if (!peer) continue;
    ++read;
    ASSERT_TRUE(same(*peer, peer_of(9, static_cast<std::uint32_t>(peer->incarnation >> 32))));
  }
  stop = true;
  writer.join();
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace radixshmem
