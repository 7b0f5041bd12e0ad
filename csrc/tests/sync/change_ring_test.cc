// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "sync/change_ring.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

namespace radixshmem {
namespace {

constexpr std::uint32_t kEntries = 16;

class ChangeRingTest : public ::testing::Test {
 protected:
  ChangeRingTest() : entries_(kEntries), ring_(&root_, entries_.data(), kEntries) {}
  void publish(BlockHash hash) { ring_.publish({ChangeKind::kRemoved, {}, 0, hash, 0, 0}); }
  // Returns: the hashes drained.
  std::vector<BlockHash> drain(std::size_t most = kEntries) {
    std::vector<Change> out(most);
    resync_ = false;
    out.resize(ring_.drain(cursor_, out, resync_));
    std::vector<BlockHash> hashes;
    for (const Change& change : out) hashes.push_back(change.hash);
    return hashes;
  }

  RingRoot root_{};
  std::vector<RingEntry> entries_;
  ChangeRing ring_;
  ChangeRing::Cursor cursor_;
  bool resync_ = false;
};

TEST_F(ChangeRingTest, GivesBackEveryFieldInOrder) {
  const Change one{ChangeKind::kStored, Component::kMamba, 0xfffffffe, 11, 12, 0xfffffff0};
  const Change two{ChangeKind::kCleared, Component::kSwa, 7, 21, 22, 3};
  ring_.publish(one);
  ring_.publish(two);
  std::array<Change, 4> out;
  ASSERT_EQ(ring_.drain(cursor_, out, resync_), 2u);
  EXPECT_FALSE(resync_);
  EXPECT_EQ(out[0].kind, one.kind);
  EXPECT_EQ(out[0].component, one.component);
  EXPECT_EQ(out[0].position, one.position);
  EXPECT_EQ(out[0].hash, one.hash);
  EXPECT_EQ(out[0].parent, one.parent);
  EXPECT_EQ(out[1].kind, two.kind);
  EXPECT_EQ(out[1].component, two.component);
  EXPECT_EQ(out[1].position, two.position);
  EXPECT_EQ(out[0].segment, one.segment);
  EXPECT_EQ(out[1].segment, two.segment);
}

TEST_F(ChangeRingTest, ADrainStopsAtItsLimitAndGoesOnThere) {
  for (BlockHash h = 1; h <= 5; ++h) publish(h);
  EXPECT_EQ(drain(2), (std::vector<BlockHash>{1, 2}));
  EXPECT_EQ(drain(0), (std::vector<BlockHash>{}));
  EXPECT_EQ(drain(2), (std::vector<BlockHash>{3, 4}));
  EXPECT_EQ(drain(2), (std::vector<BlockHash>{5}));
  EXPECT_EQ(drain(2), (std::vector<BlockHash>{}));
  EXPECT_FALSE(resync_);
}

TEST_F(ChangeRingTest, EntriesStayReadableAcrossTheWrap) {
  for (BlockHash round = 0; round < 40; ++round) {
    for (BlockHash h = 0; h < 5; ++h) publish(round * 5 + h);
    const std::vector<BlockHash> got = drain();
    ASSERT_FALSE(resync_);
    ASSERT_EQ(got.size(), 5u);
    EXPECT_EQ(got.front(), round * 5);
    EXPECT_EQ(got.back(), round * 5 + 4);
  }
}

TEST_F(ChangeRingTest, ALappedConsumerMustResyncOnceAndGoesOnAtTheHead) {
  for (BlockHash h = 0; h < kEntries; ++h) publish(h);
  EXPECT_EQ(drain().size(), kEntries) << "a whole ring is not a lap";
  for (BlockHash h = 0; h < kEntries + 1; ++h) publish(h);
  EXPECT_TRUE(drain().empty());
  EXPECT_TRUE(resync_);
  EXPECT_TRUE(drain().empty());
  EXPECT_FALSE(resync_);
  publish(77);
  EXPECT_EQ(drain(), (std::vector<BlockHash>{77}));
}

TEST_F(ChangeRingTest, ADemandedResyncReachesEveryConsumerOnce) {
  ChangeRing::Cursor other = ring_.at_head();
  publish(1);
  ring_.demand_resync();
  EXPECT_TRUE(drain().empty());
  EXPECT_TRUE(resync_);
  std::array<Change, 4> out;
  bool resync = false;
  EXPECT_EQ(ring_.drain(other, out, resync), 0u);
  EXPECT_TRUE(resync);
  publish(2);
  EXPECT_EQ(drain(), (std::vector<BlockHash>{2}));
  EXPECT_FALSE(resync_);
}

TEST_F(ChangeRingTest, ACursorAtTheHeadSeesOnlyWhatComes) {
  publish(1);
  ring_.demand_resync();
  cursor_ = ring_.at_head();
  publish(2);
  EXPECT_EQ(drain(), (std::vector<BlockHash>{2}));
  EXPECT_FALSE(resync_);
}

TEST_F(ChangeRingTest, EntriesThatAWriterMayBeRewritingAreNotBelieved) {
  for (BlockHash h = 0; h < kEntries; ++h) publish(h);
  ChangeRing::Batch one(&ring_, 1);  // about to overwrite the oldest, if it has not already
  EXPECT_TRUE(drain(1).empty());
  EXPECT_TRUE(resync_);
}

TEST_F(ChangeRingTest, ABatchOfADeadWriterIsOverwrittenUnseen) {
  for (BlockHash h = 0; h < kEntries - 2; ++h) publish(h);
  ChangeRing::Batch dead(&ring_, 8);
  dead.add({ChangeKind::kRemoved, {}, 0, 91, 0, 0});
  publish(92);
  EXPECT_TRUE(drain().empty()) << "the dead writer may have overwritten the oldest six";
  EXPECT_TRUE(resync_);
  publish(93);
  EXPECT_EQ(drain(), (std::vector<BlockHash>{93}));
  EXPECT_FALSE(resync_);
}

TEST(ChangeRingThreadsTest, AConsumerBesideAFastWriterReadsWholeEntriesOrResyncs) {
  constexpr std::uint32_t kRing = 1024;
  RingRoot root{};
  std::vector<RingEntry> entries(kRing);
  ChangeRing ring(&root, entries.data(), kRing);
  std::atomic<std::uint64_t> drains{0};
  std::atomic<bool> done{false};
  std::thread writer([&] {
    BlockHash h = 0;
    // Bursts of up to twice the ring; between them the consumer gets a turn.
    for (std::uint32_t burst = 1; burst <= 200; ++burst) {
      for (std::uint32_t i = 0; i < burst * 37 % (2 * kRing); ++i) {
        ++h;
        ring.publish({ChangeKind::kStored,
                      {},
                      static_cast<Position>(h),
                      h,
                      h * 3,
                      static_cast<SegmentId>(h * 5)});
      }
      for (const std::uint64_t before = drains; drains < before + 2;) std::this_thread::yield();
    }
    done = true;
  });
  ChangeRing::Cursor cursor;
  BlockHash last = 0;
  std::size_t seen = 0;
  std::size_t resyncs = 0;
  std::array<Change, 300> out;
  for (bool finished = false;;) {
    bool resync = false;
    const std::size_t got = ring.drain(cursor, out, resync);
    resyncs += resync ? 1u : 0u;
    for (std::size_t i = 0; i < got; ++i) {
      const Change& change = out[i];
      ASSERT_TRUE(i == 0 ? change.hash > last : change.hash == last + 1);
      ASSERT_EQ(change.parent, change.hash * 3);
      ASSERT_EQ(change.position, static_cast<Position>(change.hash));
      ASSERT_EQ(change.segment, static_cast<SegmentId>(change.hash * 5));
      last = change.hash;
      ++seen;
    }
    if (finished && got == 0) break;
    finished = done;
    drains.fetch_add(1);
    std::this_thread::yield();
  }
  writer.join();
  EXPECT_GT(seen, 0u);
  EXPECT_GT(resyncs, 0u);
}

}  // namespace
}  // namespace radixshmem
