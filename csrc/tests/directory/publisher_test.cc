// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/publisher.h"

#include <gtest/gtest.h>

#include "tests/directory/publisher_rig.h"

namespace radixshmem {
namespace {

class PublisherTest : public ::testing::Test, public PublisherRig {
 protected:
  PublisherTest() {
    publisher.set_maps({map_of(0)}, 0, now);
    EXPECT_EQ(collect(), 0u);
    EXPECT_FALSE(publisher.republishing());
  }
};

TEST_F(PublisherTest, ACompleteChunkIsPublishedAtOnceAndTheTailWhenItIsIdle) {
  const Path path = make_path(1, 22);  // chunks of 8: two, and 6 blocks
  rig.put(path);
  EXPECT_EQ(collect(), 4u);
  for (const Position p : {0u, 4u, 8u, 12u}) EXPECT_TRUE(found(path, p)) << p;
  EXPECT_FALSE(found(path, 16));
  now += 999;
  EXPECT_EQ(collect(), 0u);
  now += 1;
  EXPECT_EQ(collect(), 2u);
  EXPECT_TRUE(found(path, 16));
  EXPECT_TRUE(found(path, 20));
  now += 10'000;
  EXPECT_EQ(collect(), 0u) << "everything once";
}

TEST_F(PublisherTest, ATailThatGrowsIsNotIdle) {
  const Path path = make_path(1, 7);
  for (std::size_t n = 1; n <= 7; ++n) {
    rig.put(first_of(path, n));
    now += 900;
    EXPECT_LE(collect(), 1u) << n;  // the class-1 and class-8 segments before it may be idle
    EXPECT_FALSE(found(path, 4)) << n;
  }
  now += 1000;
  collect();
  EXPECT_TRUE(found(path, 4));
}

TEST_F(PublisherTest, AChunkIsCompleteThoughItLiesInSeveralSegments) {
  const Path path = make_path(1, 8);
  for (std::size_t n = 1; n <= 8; ++n) rig.put(first_of(path, n));
  ASSERT_GE(rig.find(path).match.steps.size(), 2u);
  EXPECT_EQ(collect(), 2u);
  EXPECT_TRUE(found(path, 0));
  EXPECT_TRUE(found(path, 4));
}

TEST_F(PublisherTest, FlushPublishesPartialChunks) {
  const Path path = make_path(1, 5);
  rig.put(path);
  EXPECT_EQ(collect(), 0u);
  EXPECT_EQ(flush(), 2u);
  EXPECT_TRUE(found(path, 4));
  EXPECT_EQ(flush(), 0u);
  rig.put(make_path(2, 1));
  EXPECT_EQ(flush(), 1u) << "also what no collect() has seen";
}

TEST_F(PublisherTest, ABranchIsPublishedWithItsOwnSegment) {
  const Path path = make_path(1, 16);
  rig.put(path);
  const Path branch = branch_of(path, 6, 2, 10);
  rig.put(branch);
  flush();
  for (const Position p : {0u, 4u, 8u, 12u}) EXPECT_TRUE(found(branch, p)) << p;
  EXPECT_NE(entry_of(branch, 8)->segment.id, entry_of(path, 8)->segment.id);
}

TEST_F(PublisherTest, EvictedKeysAreRetracted) {
  const Path path = make_path(1, 16);
  rig.put(path);
  flush();
  (void)rig.tree().evict(6);
  EXPECT_EQ(collect(), 1u) << "of blocks 10 to 15 one is a key";
  EXPECT_TRUE(found(path, 8));
  EXPECT_FALSE(found(path, 12));
  (void)rig.tree().evict(10);
  collect();
  EXPECT_FALSE(found(path, 0));
  EXPECT_EQ(keeper(0)->entries(), 0u);
}

TEST_F(PublisherTest, AKeyThatCameAndWentIsNotPublished) {
  const Path path = make_path(1, 5);
  rig.put(path);
  (void)rig.tree().evict(5);
  flush();
  EXPECT_EQ(keeper(0)->counters().published, 0u);
}

TEST_F(PublisherTest, AKeyThatWentAndCameBackIsPublished) {
  const Path path = make_path(1, 8);
  rig.put(path);
  flush();
  (void)rig.tree().evict(8);
  rig.put(path);
  flush();
  EXPECT_TRUE(found(path, 0));
  EXPECT_TRUE(found(path, 4));
}

TEST_F(PublisherTest, AResetTellsTheKeepersToForget) {
  const Path path = make_path(1, 16);
  rig.put(path);
  flush();
  rig.tree().reset();
  const Path later = make_path(2, 8);
  rig.put(later);
  collect();
  EXPECT_FALSE(found(path, 0));
  EXPECT_TRUE(found(later, 0));
  EXPECT_EQ(keeper(0)->entries(), 2u);
}

TEST_F(PublisherTest, BlocksThatAreNotCommittedYetArePublishedOnceTheyAre) {
  const Path path = make_path(1, 4);
  rig.put(path);
  const SegmentId id = rig.find(path).match.steps[0].segment;
  auto& head = rig.tree().arena().header(id)->head;
  const std::uint64_t committed = head.exchange(0);  // as if the store were still to come
  EXPECT_EQ(flush(), 0u);
  EXPECT_EQ(publisher.pending(), 1u);
  head = committed;
  now += 20;
  EXPECT_EQ(collect(), 1u);
  EXPECT_TRUE(found(path, 0));
}

TEST_F(PublisherTest, WhatNeverComesIsGivenUp) {
  const Path path = make_path(1, 4);
  rig.put(path);
  rig.tree().arena().header(rig.find(path).match.steps[0].segment)->head = 0;
  for (int i = 0; i < 200; ++i, now += 20) EXPECT_EQ(collect(), 0u);
  EXPECT_EQ(publisher.pending(), 0u);
  EXPECT_EQ(publisher.counters().given_up, 1u);
}

TEST_F(PublisherTest, ABudgetBoundsWhatIsReadAndMoreSaysSo) {
  for (std::uint64_t i = 0; i < 20; ++i) rig.put(make_path(i, 16));
  std::uint32_t keys = 0;
  int calls = 0;
  do {
    keys += deliver(publisher.collect(now, 10));
    ++calls;
  } while (publisher.more() && calls < 100);
  EXPECT_EQ(keys, 80u);
  EXPECT_GT(calls, 1);
}

TEST_F(PublisherTest, WithTooManyPendingKeysTheOldestArePublished) {
  PublisherOptions options;
  options.chunk_blocks = 1000;
  options.max_pending = 8;
  Publisher eager(rig.tree(), kWho, options);
  eager.set_maps({map_of(1)}, 0, now);
  (void)eager.collect(now, 1000);
  std::vector<Path> paths;
  for (std::uint64_t i = 0; i < 5; ++i) {
    paths.push_back(make_path(i, 16));
    rig.put(paths.back());
    last_sequence = 0;
    deliver(eager.collect(now, 1000));
    now += 1;
  }
  EXPECT_LE(eager.pending(), 8u);
  EXPECT_TRUE(found(paths[0], 0, 1));
  EXPECT_FALSE(found(paths[4], 0, 1));
}

TEST_F(PublisherTest, AfterStopTheKeepersHaveForgottenAndNothingFollows) {
  const Path path = make_path(1, 16);
  rig.put(path);
  flush();
  publisher.stop();
  collect();
  EXPECT_EQ(keeper(0)->entries(), 0u);
  rig.put(make_path(2, 16));
  EXPECT_EQ(flush(), 0u);
}

}  // namespace
}  // namespace radixshmem
