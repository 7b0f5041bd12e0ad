// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/shard_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace radixshmem {
namespace {

std::vector<ShardMember> members_of(std::uint16_t n, std::uint32_t weight = 1024) {
  std::vector<ShardMember> members;
  for (std::uint16_t r = 0; r < n; ++r) members.push_back({r, weight});
  return members;
}

std::map<std::uint16_t, std::uint32_t> shares(const ShardMap& map) {
  std::map<std::uint16_t, std::uint32_t> count;
  for (const ShardRanks& ranks : map) ++count[ranks[0]];
  return count;
}

TEST(ShardMapTest, SixteenEqualMembersDifferByLessThanTenPercent) {
  const auto count = shares(make_shard_map(members_of(16), 1));
  ASSERT_EQ(count.size(), 16u);
  for (const auto& [rank, shards] : count) EXPECT_NEAR(shards, 4096.0, 409.0) << rank;
}

TEST(ShardMapTest, SharesFollowTheWeights) {
  auto members = members_of(8, 1000);
  members[3].weight = 4000;
  members[5].weight = 250;
  members[6].weight = 0;
  const auto count = shares(make_shard_map(members, 1));
  const double unit = 65536.0 / (5 * 1000 + 4000 + 250);
  EXPECT_FALSE(count.contains(6));
  EXPECT_NEAR(count.at(3), 4000 * unit, 4000 * unit * 0.1);
  EXPECT_NEAR(count.at(5), 250 * unit, 250 * unit * 0.1);
  EXPECT_NEAR(count.at(0), 1000 * unit, 1000 * unit * 0.1);
}

TEST(ShardMapTest, LargeWeightsDoNotOverflow) {
  auto members = members_of(3, (1u << 31) - 1);
  members[1].weight = 1u << 30;
  const auto count = shares(make_shard_map(members, 1));
  EXPECT_NEAR(count.at(0), 65536 * 0.4, 2000.0);
  EXPECT_NEAR(count.at(1), 65536 * 0.2, 2000.0);
}

TEST(ShardMapTest, AJoinerTakesItsPartAndNothingElseMoves) {
  const ShardMap before = make_shard_map(members_of(15), 1);
  const ShardMap after = make_shard_map(members_of(16), 1);
  std::uint32_t moved = 0;
  for (std::uint32_t s = 0; s < kShards; ++s) {
    if (before[s] == after[s]) continue;
    ++moved;
    ASSERT_EQ(after[s][0], 15) << s;
  }
  EXPECT_NEAR(moved, 4096.0, 409.0);
}

TEST(ShardMapTest, WhatALeaverKeptGoesToItsReplicas) {
  const ShardMap before = make_shard_map(members_of(16), 2);
  auto members = members_of(16);
  members.erase(members.begin() + 7);
  const ShardMap after = make_shard_map(members, 2);
  for (std::uint32_t s = 0; s < kShards; ++s) {
    ASSERT_EQ(after[s][0], before[s][0] == 7 ? before[s][1] : before[s][0]) << s;
    if (before[s][0] == 7 || before[s][1] == 7) continue;
    ASSERT_EQ(after[s][1], before[s][1]) << s;
  }
}

TEST(ShardMapTest, AReplicaIsAnotherMemberAndThereOnlyIfWanted) {
  for (const ShardRanks& ranks : make_shard_map(members_of(3), 2)) {
    ASSERT_NE(ranks[0], ranks[1]);
    ASSERT_LT(ranks[1], 3);
  }
  EXPECT_EQ(make_shard_map(members_of(3), 1)[0][1], kNoShardRank);
  EXPECT_EQ(make_shard_map(members_of(1), 2)[0], (ShardRanks{0, kNoShardRank}));
  EXPECT_EQ(make_shard_map({}, 2)[65535], (ShardRanks{kNoShardRank, kNoShardRank}));
}

std::uint64_t digest(const ShardMap& map) {
  std::uint64_t digest = map.size();
  for (const ShardRanks& ranks : map) {
    digest = mix_hash(digest ^ (std::uint64_t{ranks[1]} << 16 | ranks[0])) + digest;
  }
  return digest;
}

TEST(ShardMapTest, TheMapDependsOnTheMembersAlone) {
  auto members = members_of(9);
  const ShardMap map = make_shard_map(members, 2);
  std::ranges::reverse(members);
  EXPECT_EQ(map, make_shard_map(members, 2));
  // Nodes of one cluster agree on these; a change is another protocol version.
  EXPECT_EQ(digest(map), 11453683518151060694u);
  members[0].weight += 100;
  EXPECT_NE(map, make_shard_map(members, 2));
}

TEST(ShardMapTest, OfManyMembersSomeKeepShardsAndFewMoveWhenOneLeaves) {
  EXPECT_EQ(shares(make_shard_map(members_of(256), 1)).size(), 256u);
  auto members = members_of(300);
  const ShardMap before = make_shard_map(members, 1);
  const auto count = shares(before);
  ASSERT_EQ(count.size(), kDirectoryMembers);
  members.erase(members.begin() + count.begin()->first);
  const ShardMap after = make_shard_map(members, 1);
  std::uint32_t moved = 0;
  for (std::uint32_t s = 0; s < kShards; ++s) moved += before[s] != after[s] ? 1 : 0;
  EXPECT_EQ(shares(after).size(), kDirectoryMembers);
  EXPECT_LT(moved, 3 * kShards / kDirectoryMembers) << "what the leaver kept, and the new one's";
}

}  // namespace
}  // namespace radixshmem
