// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "sync/undo_log.h"

#include <gtest/gtest.h>

#include <memory>

#include "layout/words.h"

namespace radixshmem {
namespace {

using Outcome = UndoLog::Outcome;

class UndoLogTest : public ::testing::Test {
 protected:
  struct Region {
    std::uint64_t nothing;  // offset 0 means "no commit word"
    std::atomic<std::uint8_t> u8[4];
    std::atomic<std::uint16_t> u16[2];
    std::atomic<std::uint32_t> u32[2];
    std::atomic<std::uint64_t> u64;
    std::atomic<std::uint64_t> head;
    std::atomic<std::uint64_t> aux;
    UndoLogShared log;
  };

  UndoLogTest()
      : region_(std::make_unique<Region>()),
        log_(reinterpret_cast<std::byte*>(region_.get()), sizeof(Region), &region_->log) {}
  // What the next lock holder does.
  Outcome recover() {
    const Outcome outcome = log_.outcome();
    log_.resolve(outcome);
    log_.reset(0);
    return outcome;
  }

  std::unique_ptr<Region> region_;
  UndoLog log_;
};

TEST_F(UndoLogTest, RestoresEveryWidthAndNoNeighbour) {
  Region& r = *region_;
  for (auto& word : r.u8) word = 0x11;
  for (auto& word : r.u16) word = 0x2222;
  for (auto& word : r.u32) word = 0x33333333;
  r.u64 = 0x4444444444444444;
  log_.store(r.u8[1], 0xff);
  log_.store(r.u16[1], 0xffff);
  log_.store(r.u32[0], 0xffffffff);
  log_.store(r.u64, ~std::uint64_t{0});
  r.u8[2] = 0x77;  // not logged: stays
  EXPECT_EQ(recover(), Outcome::kUndone);
  EXPECT_EQ(r.u8[0], 0x11);
  EXPECT_EQ(r.u8[1], 0x11);
  EXPECT_EQ(r.u8[2], 0x77);
  EXPECT_EQ(r.u16[0], 0x2222);
  EXPECT_EQ(r.u16[1], 0x2222);
  EXPECT_EQ(r.u32[0], 0x33333333u);
  EXPECT_EQ(r.u64, 0x4444444444444444u);
  EXPECT_EQ(log_.entries(), 0u);
}

TEST_F(UndoLogTest, ARunCountsAsAWholeWhenItIsFinished) {
  Region& r = *region_;
  r.u32[0] = 1;
  r.u8[3] = 2;
  log_.store(r.u64, 3);
  UndoLog::Run run(&log_, 2);
  run.add(r.u32[0]);
  run.add(r.u8[3]);
  EXPECT_EQ(log_.entries(), 1u) << "a death here leaves words that nobody has changed";
  run.finish();
  EXPECT_EQ(log_.entries(), 3u);
  r.u32[0] = 11;
  r.u8[3] = 12;
  log_.store(r.u64, 13);
  EXPECT_EQ(recover(), Outcome::kUndone);
  EXPECT_EQ(r.u32[0], 1u);
  EXPECT_EQ(r.u8[3], 2u);
  EXPECT_EQ(r.u64, 0u);
}

TEST_F(UndoLogTest, AWordStoredTwiceGetsItsFirstValueBack) {
  region_->u32[0] = 1;
  log_.store(region_->u32[0], 2);
  log_.store(region_->u32[0], 3);
  EXPECT_EQ(recover(), Outcome::kUndone);
  EXPECT_EQ(region_->u32[0], 1u);
}

TEST_F(UndoLogTest, AnUndoneHeadHasANewerVersionThanItEverHad) {
  region_->head = SegmentHead{10, SegmentState::kLive, 5, 5}.pack();
  log_.store_head(region_->head, next_head(region_->head, SegmentState::kLive, 2, 5));
  EXPECT_EQ(SegmentHead::unpack(region_->head).version, 11u);
  EXPECT_EQ(recover(), Outcome::kUndone);
  const SegmentHead head = SegmentHead::unpack(region_->head);
  EXPECT_EQ(head.version, 12u);
  EXPECT_EQ(head.count, 5u);
  EXPECT_EQ(head.owned, 5u);
  EXPECT_TRUE(head.live());
}

TEST_F(UndoLogTest, AnUndoneAuxWordHasANewerVersionAndItsOldSlot) {
  region_->aux = AuxWord::with_slot(std::uint64_t{10} << 32, 4);
  log_.store_aux(region_->aux, AuxWord::absent_after(region_->aux));
  EXPECT_EQ(recover(), Outcome::kUndone);
  EXPECT_EQ(region_->aux >> 32, 12u);
  EXPECT_EQ(AuxWord::slot(region_->aux), 4u);
}

TEST_F(UndoLogTest, AnUndoneAuxWordThatWasAbsentIsAbsentAgain) {
  region_->aux = std::uint64_t{10} << 32;
  log_.store_aux(region_->aux, AuxWord::with_slot(region_->aux, 4));
  EXPECT_EQ(recover(), Outcome::kUndone);
  EXPECT_FALSE(AuxWord::present(region_->aux));
}

TEST_F(UndoLogTest, CommitKeepsEverything) {
  log_.store(region_->u32[0], 7);
  log_.commit(99);
  EXPECT_EQ(log_.ring_head(), 99u);
  EXPECT_EQ(recover(), Outcome::kEmpty);
  EXPECT_EQ(region_->u32[0], 7u);
}

TEST_F(UndoLogTest, WithTheCommitWordInPlaceAnOpenTransactionIsKept) {
  log_.set_commit(region_->head, 1234);
  log_.store(region_->u32[0], 7);
  region_->head = 1234;
  EXPECT_EQ(recover(), Outcome::kCommitted);
  EXPECT_EQ(region_->u32[0], 7u);
}

TEST_F(UndoLogTest, WithoutItTheTransactionIsUndone) {
  log_.set_commit(region_->head, 1234);
  log_.store(region_->u32[0], 7);
  EXPECT_EQ(recover(), Outcome::kUndone);
  EXPECT_EQ(region_->u32[0], 0u);
}

TEST_F(UndoLogTest, TheCommitWordOfTheLastTransactionIsForgotten) {
  log_.set_commit(region_->head, 1234);
  log_.store(region_->u32[0], 7);
  region_->head = 1234;
  log_.commit(0);
  log_.store(region_->u32[0], 8);  // a transaction without a commit word; head is still 1234
  EXPECT_EQ(recover(), Outcome::kUndone);
  EXPECT_EQ(region_->u32[0], 7u);
}

TEST_F(UndoLogTest, AnUndoThatWasInterruptedIsFinishedByTheNext) {
  region_->u32[0] = 1;
  region_->u32[1] = 1;
  log_.store(region_->u32[0], 2);
  log_.store(region_->u32[1], 2);
  // Killed after the last entry was restored and `entries` lowered.
  region_->u32[1] = 1;
  region_->log.entries = 1;
  EXPECT_EQ(recover(), Outcome::kUndone);
  EXPECT_EQ(region_->u32[0], 1u);
  EXPECT_EQ(region_->u32[1], 1u);
}

TEST_F(UndoLogTest, AnEntryWhoseWordWasNotStoredYetIsHarmless) {
  region_->u32[0] = 5;
  log_.store(region_->u32[0], 6);
  region_->u32[0] = 5;  // as if killed between the entry and the store
  EXPECT_EQ(recover(), Outcome::kUndone);
  EXPECT_EQ(region_->u32[0], 5u);
}

TEST_F(UndoLogTest, RoomCountsDown) {
  const std::uint32_t all = log_.room();
  EXPECT_EQ(all, kUndoEntries);
  log_.store(region_->u32[0], 1);
  EXPECT_EQ(log_.room(), all - 1);
}

TEST_F(UndoLogTest, AnUnusableLogRestoresNothing) {
  const auto spoil = [&](std::uint64_t where) {
    region_->u32[0] = 1;
    log_.store(region_->u32[0], 2);
    region_->log.entry[0].where = where;
    EXPECT_EQ(recover(), Outcome::kUnusable) << where;
    EXPECT_EQ(region_->u32[0], 2u);
    EXPECT_EQ(log_.entries(), 0u);
  };
  spoil(std::uint64_t{8} << 8 | 3);  // unknown tag
  spoil(std::uint64_t{8} << 8 | 11);
  spoil(std::uint64_t{8} << 8 | 0);
  spoil((sizeof(Region) - 7) << 8 | 1);  // beyond the last word
  spoil(~std::uint64_t{0} << 8 | 8);
  spoil(std::uint64_t{9} << 8 | 4);  // not aligned
  region_->log.entries = static_cast<std::uint32_t>(kUndoEntries) + 1;
  EXPECT_EQ(recover(), Outcome::kUnusable);
  region_->log.entries = 1;
  region_->log.entry[0].where = std::uint64_t{8} << 8 | 1;
  region_->log.commit_offset = sizeof(Region);
  EXPECT_EQ(recover(), Outcome::kUnusable);
}

TEST_F(UndoLogTest, AnUnalignedCommitOffsetIsUnusable) {
  log_.store(region_->u32[0], 2);
  region_->log.commit_offset = 3;
  EXPECT_EQ(recover(), Outcome::kUnusable);
}

TEST(UndoLogDeathTest, AFullLogIsAProgrammingError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  struct Region {
    std::uint64_t nothing;
    std::atomic<std::uint32_t> word;
    UndoLogShared log;
  };
  auto region = std::make_unique<Region>();
  UndoLog log(reinterpret_cast<std::byte*>(region.get()), sizeof(Region), &region->log);
  for (std::uint32_t i = 0; i < kUndoEntries; ++i) log.store(region->word, i);
  EXPECT_DEATH(log.store(region->word, 0), "16384");
}

}  // namespace
}  // namespace radixshmem
