// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include <gtest/gtest.h>

#include "tests/directory/publisher_rig.h"

namespace radixshmem {
namespace {

class RepublicationTest : public ::testing::Test, public PublisherRig {
 protected:
  RepublicationTest() : RepublicationTest(400) {}
  explicit RepublicationTest(std::uint32_t full) : PublisherRig(grid_plan(full)) {
    publisher.set_maps({map_of(0)}, 0, now);
    EXPECT_EQ(collect(), 0u);
    for (std::uint64_t i = 0; i < 5; ++i) {
      paths.push_back(make_path(i, 16));
      rig.put(paths.back());
    }
    EXPECT_EQ(flush(), 20u);
  }
  [[nodiscard]] std::uint32_t keys_at(std::uint16_t rank) {
    std::uint32_t n = 0;
    for (const Path& path : paths) {
      for (Position p = 0; p < path.size(); p += 4) n += found(path, p, rank) ? 1 : 0;
    }
    return n;
  }

  std::vector<Path> paths;
};

TEST_F(RepublicationTest, WhatIsInTheTreeGoesToTheFirstKeepers) {
  Publisher late(rig.tree(), kWho, options_of(8));
  EXPECT_TRUE(late.flush(now).empty()) << "nobody to tell";
  late.set_maps({map_of(3)}, 0, now);
  last_sequence = 0;
  EXPECT_EQ(deliver(late.collect(now, 1000)), 20u);
  EXPECT_EQ(keys_at(3), 20u);
}

TEST_F(RepublicationTest, OnlyShardsWithANewKeeperMoveAndOnlyToIt) {
  ShardMap map = map_of(0);
  for (std::uint32_t s = 0; s < kShards; s += 2) map[s] = {1, kNoShardRank};
  publisher.set_maps({map}, 0, now);
  const auto sent = publisher.collect(now, 1000);
  for (const AddressedBatch& p : sent) EXPECT_EQ(p.to, 1);
  const std::uint32_t moved = deliver(sent);
  EXPECT_EQ(keys_at(1), moved);
  EXPECT_NEAR(moved, 10.0, 8.0);
  publisher.set_maps({map}, 0, now);
  EXPECT_EQ(collect(), 0u) << "the same map again";
}

TEST_F(RepublicationTest, BothMapsAreWrittenToWhileTheyDiffer) {
  publisher.set_maps({map_of(0), map_of(1)}, 0, now);
  EXPECT_EQ(collect(), 20u);
  EXPECT_EQ(keys_at(1), 20u);
  const Path path = make_path(9, 8);
  rig.put(path);
  EXPECT_EQ(collect(), 4u);
  EXPECT_TRUE(found(path, 4, 0));
  EXPECT_TRUE(found(path, 4, 1));
  publisher.set_maps({map_of(1)}, 0, now);
  EXPECT_EQ(collect(), 0u);
  rig.put(make_path(10, 8));
  EXPECT_EQ(collect(), 2u);
}

TEST_F(RepublicationTest, AReplicaGetsEveryKeyToo) {
  publisher.set_maps({ShardMap(kShards, ShardRanks{0, 5})}, 0, now);
  EXPECT_EQ(collect(), 20u);
  EXPECT_EQ(keys_at(5), 20u);
}

TEST_F(RepublicationTest, AMoveThatIsInterruptedByAnotherIsFinished) {
  publisher.set_maps({map_of(1)}, 1, now);  // 1 key a second: not done soon
  collect();
  publisher.set_maps({map_of(1), map_of(2)}, 0, now);
  collect();
  EXPECT_FALSE(publisher.republishing());
  EXPECT_EQ(keys_at(1), 20u);
  EXPECT_EQ(keys_at(2), 20u);
}

TEST_F(RepublicationTest, ARateBoundsTheKeysOfEachSecond) {
  publisher.republish_all(4, now);
  std::uint32_t keys = 0;
  for (int second = 0; second < 3; ++second) {
    now += 999;
    EXPECT_EQ(collect(), 0u) << "once a second";
    now += 1;
    keys += collect();
    EXPECT_LE(keys, 4u * static_cast<std::uint32_t>(second + 1) + 3) << "whole segments";
    EXPECT_TRUE(publisher.republishing());
  }
  now += 60'000;
  keys += collect();
  EXPECT_EQ(keys, 20u);
  EXPECT_FALSE(publisher.republishing());
}

TEST_F(RepublicationTest, AMoveBeginsAfterItsDelayUnlessAFlushWaitsForIt) {
  publisher.set_maps({map_of(1)}, 0, now, 500);
  EXPECT_EQ(collect(), 0u);
  EXPECT_TRUE(publisher.republishing());
  now += 500;
  EXPECT_EQ(collect(), 20u);
  EXPECT_FALSE(publisher.republishing());
  publisher.set_maps({map_of(2)}, 0, now, 500);
  EXPECT_EQ(flush(), 20u);
  EXPECT_EQ(keys_at(2), 20u);
}

TEST_F(RepublicationTest, FlushEndsAMoveButNotAHeal) {
  publisher.republish_all(1, now);
  EXPECT_EQ(flush(), 0u);
  EXPECT_TRUE(publisher.republishing());
  publisher.set_maps({map_of(1)}, 1, now);
  EXPECT_GE(flush(), 20u);
  EXPECT_FALSE(publisher.republishing());
  EXPECT_EQ(keys_at(1), 20u);
}

TEST_F(RepublicationTest, AResentKeeperHasEverythingAgain) {
  keeper(0)->drop_rank(kWho.rank);
  EXPECT_EQ(keys_at(0), 0u);
  publisher.resend(0, 0, now);
  collect();
  EXPECT_EQ(keys_at(0), 20u);
  publisher.resend(3, 0, now);
  EXPECT_EQ(collect(), 0u) << "3 keeps nothing";
}

TEST_F(RepublicationTest, ANewGenerationSweepsWhatCouldNotBeRetracted) {
  (void)rig.tree().evict(80);
  (void)publisher.collect(now, 1000);  // lost on the way
  EXPECT_EQ(keeper(0)->entries(), 20u);
  rig.put(paths[0]);
  flush();
  publisher.republish_all(0, now);
  collect();
  EXPECT_EQ(keeper(0)->entries(), 4u);
  EXPECT_EQ(keys_at(0), 4u);
}

TEST_F(RepublicationTest, AKeeperThatLeftTheMapsIsSweptOnce) {
  publisher.set_maps({map_of(1)}, 0, now);
  collect();
  EXPECT_EQ(keeper(0)->entries(), 20u);
  publisher.republish_all(0, now);
  collect();
  EXPECT_EQ(keeper(0)->entries(), 0u);
  publisher.republish_all(0, now);
  for (const AddressedBatch& p : publisher.collect(now, 1000)) EXPECT_EQ(p.to, 1);
}

TEST_F(RepublicationTest, ALostRingIsMadeUpFor) {
  (void)rig.tree().evict(16);
  for (std::uint64_t i = 100; i < 220; ++i) {  // more than the ring's 1,024 events
    paths.push_back(make_path(i, 8));
    rig.put(paths.back());
    (void)rig.tree().evict(8);
  }
  paths.push_back(make_path(50, 16));
  rig.put(paths.back());
  collect();
  EXPECT_EQ(publisher.counters().resyncs, 1u);
  EXPECT_TRUE(found(paths.back(), 12));
  std::uint32_t live = 0;
  for (const Path& path : paths) live += (rig.hit(path) + 3) / 4;
  EXPECT_EQ(keys_at(0), live);
  EXPECT_EQ(keeper(0)->entries(), live) << "nothing that is not there any more";
}

TEST_F(RepublicationTest, ADemandedResyncIsFollowedWithoutANewEvent) {
  keeper(0)->drop_rank(kWho.rank);
  rig.tree().repair();  // raises the overflow
  collect();
  EXPECT_EQ(publisher.counters().resyncs, 1u);
  EXPECT_EQ(keys_at(0), 20u);
}

TEST_F(RepublicationTest, ARepublicationThatTakesLongIsNotBegunAgain) {
  keeper(0)->drop_rank(kWho.rank);
  for (int second = 0; second < 5; ++second) {
    publisher.republish_all(4, now);
    now += 1000;
    collect();
  }
  EXPECT_EQ(keys_at(0), 20u);
}

}  // namespace
}  // namespace radixshmem
