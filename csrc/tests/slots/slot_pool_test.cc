// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "slots/slot_pool.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

namespace radixshmem {
namespace {

constexpr std::uint32_t kSlots = 10;
constexpr std::uint32_t kMine = client_owner(3);

class SlotPoolTest : public ::testing::Test {
 protected:
  struct Region {
    std::uint64_t nothing;
    SlotPoolRoot root;
    std::atomic<std::uint32_t> owners[kSlots];
    UndoLogShared log;
  };

  SlotPoolTest()
      : region_(std::make_unique<Region>()),
        log_(reinterpret_cast<std::byte*>(region_.get()), sizeof(Region), &region_->log),
        pool_(&region_->root, region_->owners, kSlots, &log_) {
    pool_.init();
  }
  std::vector<SlotId> take(std::size_t n) {
    std::vector<SlotId> out(n);
    pool_.take(out, kMine);
    return out;
  }
  void give_back(const std::vector<SlotId>& slots) {
    SlotPool::Freeing freeing(&pool_);
    for (const SlotId slot : slots) freeing.add(slot);
    EXPECT_EQ(freeing.count(), slots.size());
    freeing.finish();
  }
  // Returns: the slots on the free list; its length is checked against the count.
  std::set<SlotId> free_slots() const {
    std::set<SlotId> free;
    for (std::uint32_t at = pool_.free_head(); at != 0; at = pool_.owner(at - 1)) {
      if (at > kSlots || !free.insert(at - 1).second) {
        ADD_FAILURE() << "broken list at " << at;
        break;
      }
    }
    EXPECT_EQ(free.size(), pool_.free_count());
    return free;
  }

  std::unique_ptr<Region> region_;
  UndoLog log_;
  SlotPool pool_;
};

TEST_F(SlotPoolTest, StartsWithEverySlotFree) {
  EXPECT_EQ(free_slots().size(), kSlots);
  EXPECT_EQ(pool_.size(), kSlots);
}

TEST_F(SlotPoolTest, TakesEachSlotOnceAndNamesTheOwner) {
  const std::vector<SlotId> all = take(kSlots);
  EXPECT_EQ(std::set<SlotId>(all.begin(), all.end()).size(), kSlots);
  for (const SlotId slot : all) EXPECT_EQ(pool_.owner(slot), kMine);
  EXPECT_EQ(pool_.free_count(), 0u);
  EXPECT_EQ(pool_.free_head(), 0u);
}

TEST_F(SlotPoolTest, FreedSlotsComeAgainAndOthersStay) {
  (void)take(kSlots);
  give_back({2, 7, 0});
  EXPECT_EQ(free_slots(), (std::set<SlotId>{0, 2, 7}));
  const std::vector<SlotId> again = take(3);
  EXPECT_EQ(std::set<SlotId>(again.begin(), again.end()), (std::set<SlotId>{0, 2, 7}));
}

TEST_F(SlotPoolTest, FreeingNothingChangesNothing) {
  (void)take(4);
  log_.commit(0);
  give_back({});
  EXPECT_EQ(log_.entries(), 0u);
  EXPECT_EQ(free_slots().size(), 6u);
}

TEST_F(SlotPoolTest, FreeingCostsAnEntryPerSlotAndTwo) {
  (void)take(kSlots);
  log_.commit(0);
  give_back({1, 2, 3, 4});
  EXPECT_EQ(log_.entries(), 6u);
}

TEST_F(SlotPoolTest, ARunOfSlotsChangesHandsAsOneByOne) {
  const std::vector<SlotId> mine = take(5);
  EXPECT_EQ(pool_.first_not_of(kMine, mine, 0), mine.size());
  pool_.set_owners(std::span(mine).subspan(2, 2), kOwnerTree, FaultPoint::append_owner);
  EXPECT_EQ(pool_.first_not_of(kMine, mine, 0), 2u);
  EXPECT_EQ(pool_.first_not_of(kOwnerTree, mine, 2), 4u);
  EXPECT_EQ(pool_.first_not_of(kMine, std::vector<SlotId>{mine[0], kSlots}, 0), 1u) << "no slot";
  log_.commit(0);
  SlotPool::Freeing freeing(&pool_);
  freeing.add(std::span(mine).subspan(1, 3), FaultPoint::recycle_owner);
  freeing.add(mine[4]);
  EXPECT_EQ(freeing.count(), 4u);
  freeing.finish();
  EXPECT_EQ(log_.entries(), 6u);
  EXPECT_EQ(free_slots().size(), kSlots - 1);
  EXPECT_EQ(take(1), std::vector<SlotId>{mine[4]}) << "the last one freed comes first";
}

TEST_F(SlotPoolTest, UndoneTakesAndFreesLeaveEverythingAsItWas) {
  (void)take(3);
  log_.commit(0);
  const std::set<SlotId> before = free_slots();
  (void)take(4);
  log_.resolve(UndoLog::Outcome::kUndone);
  EXPECT_EQ(free_slots(), before);
  give_back({0, 1});
  log_.resolve(UndoLog::Outcome::kUndone);
  EXPECT_EQ(free_slots(), before);
  EXPECT_EQ(pool_.owner(0), kMine);
}

TEST_F(SlotPoolTest, TheFreeListIsRebuiltFromOwnerWords) {
  (void)take(kSlots);
  pool_.restore_owner(4, 0);
  pool_.restore_owner(9, 5);  // any word below the base is free
  pool_.restore_owner(5, kOwnerQuarantine);
  pool_.restore_owner(6, kOwnerTree);
  pool_.rebuild_free_list();
  EXPECT_EQ(free_slots(), (std::set<SlotId>{4, 9}));
  EXPECT_EQ(pool_.owner(5), kOwnerQuarantine);
}

TEST(SlotPoolEmptyTest, APoolWithoutSlotsHasNothingToGive) {
  SlotPoolRoot root{};
  SlotPool pool(&root, nullptr, 0, nullptr);
  pool.init();
  EXPECT_EQ(pool.free_count(), 0u);
  EXPECT_EQ(pool.free_head(), 0u);
  pool.rebuild_free_list();
  EXPECT_EQ(pool.free_count(), 0u);
}

using SlotPoolDeathTest = SlotPoolTest;

TEST_F(SlotPoolDeathTest, TakingMoreThanThereIsIsAProgrammingError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)take(kSlots + 1), "head != 0");
}

}  // namespace
}  // namespace radixshmem
