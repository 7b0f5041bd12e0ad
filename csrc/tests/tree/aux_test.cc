// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include <gtest/gtest.h>

#include "tests/tree/tree_rig.h"

namespace radixshmem {
namespace {

constexpr Component kSwa = Component::kSwa;
constexpr Component kMamba = Component::kMamba;
constexpr std::uint32_t kWindow = 4;

class AuxTest : public ::testing::Test {
 protected:
  AuxTest() : rig_(small_plan(400, 60, 20, kWindow)) {}
  // Inserts FULL blocks of `path` and the window at its end.
  void put_with_window(const Path& path) {
    rig_.put(path);
    rig_.put_aux(kSwa, path, std::min(kWindow, static_cast<std::uint32_t>(path.size())));
  }
  TreeRig rig_;
};

TEST_F(AuxTest, AWindowIsFoundAtTheEndOfItsPath) {
  const Path path = make_path(1, 30);
  rig_.put(path);
  const Slots slots = rig_.allocate(kWindow, kSwa);
  const InsertOutcome outcome = rig_.insert_aux(kSwa, path, slots);
  EXPECT_EQ(outcome.error, ErrorCode::OK);
  EXPECT_EQ(outcome.first, 26u);
  EXPECT_EQ(outcome.last, 30u);
  const TreeRig::Found found = rig_.find(path, kMaskFull | kMaskSwa);
  EXPECT_EQ(found.match.end, 30u);
  EXPECT_EQ(found.window.swa_start, 26u);
  EXPECT_EQ(found.window.swa_slots, slots);
  EXPECT_SOUND(rig_);
}

TEST_F(AuxTest, TheDeepestCompleteWindowCounts) {
  const Path path = make_path(1, 40);
  rig_.put(path);
  rig_.put_aux(kSwa, first_of(path, 10), kWindow);
  rig_.put_aux(kSwa, first_of(path, 25), kWindow);
  EXPECT_EQ(rig_.hit(path, kMaskFull | kMaskSwa), 25u);
  EXPECT_EQ(rig_.hit(first_of(path, 24), kMaskFull | kMaskSwa), 10u);
  EXPECT_EQ(rig_.hit(first_of(path, 9), kMaskFull | kMaskSwa), 0u);
  EXPECT_EQ(rig_.hit(path), 40u);
}

TEST_F(AuxTest, AWindowMayCrossSegments) {
  const Path path = make_path(1, 40);
  rig_.put(path);
  for (const std::size_t n : {17u, 18u, 34u}) {
    rig_.put_aux(kSwa, first_of(path, n), kWindow);
    const TreeRig::Found found = rig_.find(first_of(path, n), kMaskFull | kMaskSwa);
    EXPECT_EQ(found.match.end, n);
    EXPECT_EQ(found.window.swa_slots.size(), kWindow);
    EXPECT_EQ(found.window.first_step, found.match.steps.size() - 2) << "two segments to pin";
    if (n == 17) {
      rig_.tree().evict_aux(kSwa, 100);
    }
  }
  EXPECT_SOUND(rig_);
}

TEST_F(AuxTest, AShortPathHasAShortWindow) {
  const Path path = make_path(1, 3);
  rig_.put(path);
  rig_.put_aux(kSwa, path, 3);
  const TreeRig::Found found = rig_.find(path, kMaskFull | kMaskSwa);
  EXPECT_EQ(found.match.end, 3u);
  EXPECT_EQ(found.window.swa_start, 0u);
  EXPECT_EQ(rig_.hit(first_of(path, 2), kMaskFull | kMaskSwa), 2u) << "[0, 2) is covered too";
}

TEST_F(AuxTest, AnIncompleteWindowIsNone) {
  const Path path = make_path(1, 20);
  rig_.put(path);
  Slots slots = rig_.allocate(kWindow, kSwa);
  const std::int32_t left_out = std::exchange(slots[1], -1);
  EXPECT_EQ(rig_.insert_aux(kSwa, path, slots).error, ErrorCode::OK);
  EXPECT_EQ(rig_.hit(path, kMaskFull | kMaskSwa), 0u);
  // The gap is filled later; -1 keeps what is there.
  const InsertOutcome outcome = rig_.insert_aux(kSwa, path, {-1, left_out, -1, -1});
  EXPECT_EQ(outcome.error, ErrorCode::OK);
  EXPECT_EQ(outcome.first, 17u);
  EXPECT_EQ(outcome.last, 18u);
  slots[1] = left_out;
  EXPECT_EQ(rig_.find(path, kMaskFull | kMaskSwa).window.swa_slots, slots);
  EXPECT_SOUND(rig_);
}

TEST_F(AuxTest, OverlappingWindowsShareTheirSlots) {
  const Path path = make_path(1, 20);
  rig_.put(path);
  const Slots first = rig_.allocate(kWindow, kSwa);
  EXPECT_TRUE(rig_.insert_aux(kSwa, first_of(path, 18), first).unused.empty());
  const Slots second = rig_.allocate(kWindow, kSwa);
  const InsertOutcome outcome = rig_.insert_aux(kSwa, path, second);
  Slots unused = outcome.unused;
  std::sort(unused.begin(), unused.end());
  Slots expected = {second[0], second[1]};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(unused, expected) << "existing slots win";
  EXPECT_EQ(rig_.find(path, kMaskFull | kMaskSwa).window.swa_slots,
            (Slots{first[2], first[3], second[2], second[3]}));
  EXPECT_SOUND(rig_);
}

TEST_F(AuxTest, TheFullPathMustExistFirst) {
  const Path path = make_path(1, 20);
  rig_.put(first_of(path, 19));
  const Slots slots = rig_.allocate(kWindow, kSwa);
  const InsertOutcome outcome = rig_.insert_aux(kSwa, path, slots);
  EXPECT_EQ(outcome.error, ErrorCode::FULL_PATH_MISSING);
  EXPECT_EQ(outcome.unused, slots);
  EXPECT_EQ(outcome.first, outcome.last);
  EXPECT_SOUND(rig_);
}

TEST_F(AuxTest, ASlotOfAnotherPoolsOwnerIsRefused) {
  const Path path = make_path(1, 20);
  rig_.put(path);
  Slots slots = rig_.allocate(kWindow, kSwa);
  slots[2] = 59;  // free
  const InsertOutcome outcome = rig_.insert_aux(kSwa, path, slots);
  EXPECT_EQ(outcome.error, ErrorCode::BAD_REQUEST);
  EXPECT_TRUE(outcome.unused.empty());
  EXPECT_EQ(rig_.hit(path, kMaskSwa), 0u);
}

TEST_F(AuxTest, CheckpointsAreFoundAtTheirBlock) {
  const Path path = make_path(1, 40);
  rig_.put(path);
  rig_.put_aux(kMamba, first_of(path, 12), 1);
  rig_.put_aux(kMamba, first_of(path, 32), 1);
  EXPECT_EQ(rig_.hit(path, kMaskFull | kMaskMamba), 32u);
  EXPECT_EQ(rig_.hit(first_of(path, 31), kMaskFull | kMaskMamba), 12u);
  EXPECT_EQ(rig_.hit(first_of(path, 11), kMaskFull | kMaskMamba), 0u);
  EXPECT_TRUE(rig_.find(path, kMaskFull | kMaskMamba).window.mamba.has_value());
}

TEST_F(AuxTest, MinusOneIsNoMambaSlot) {
  const Path path = make_path(1, 12);
  rig_.put(path);
  EXPECT_EQ(rig_.insert_aux(kMamba, path, {-1}).error, ErrorCode::BAD_REQUEST);
  EXPECT_EQ(rig_.insert_aux(kSwa, path, {-1}).error, ErrorCode::OK);
}

TEST_F(AuxTest, AnExistingCheckpointWins) {
  const Path path = make_path(1, 12);
  rig_.put(path);
  const Slots first = rig_.allocate(1, kMamba);
  const Slots second = rig_.allocate(1, kMamba);
  EXPECT_EQ(rig_.insert_aux(kMamba, path, first).last, 12u);
  EXPECT_EQ(rig_.insert_aux(kMamba, path, second).unused, second);
  EXPECT_EQ(rig_.find(path, kMaskMamba).window.mamba, static_cast<SlotId>(first[0]));
}

TEST_F(AuxTest, AllComponentsTogetherNeedAPlaceThatSatisfiesEach) {
  const Path path = make_path(1, 40);
  rig_.put(path);
  rig_.put_aux(kSwa, first_of(path, 30), kWindow);
  rig_.put_aux(kSwa, first_of(path, 20), kWindow);
  rig_.put_aux(kMamba, first_of(path, 20), 1);
  rig_.put_aux(kMamba, first_of(path, 35), 1);
  EXPECT_EQ(rig_.hit(path, kMaskFull | kMaskSwa), 30u);
  EXPECT_EQ(rig_.hit(path, kMaskFull | kMaskMamba), 35u);
  EXPECT_EQ(rig_.hit(path, kMaskFull | kMaskSwa | kMaskMamba), 20u);
  EXPECT_EQ(rig_.hit(path, kMaskSwa | kMaskMamba), 20u);
}

TEST_F(AuxTest, AuxNeverOutlivesItsBlock) {
  const Path path = make_path(1, 20);
  put_with_window(path);
  rig_.put_aux(kMamba, path, 1);
  EXPECT_EQ(rig_.tree().evict(2), 2u);
  EXPECT_EQ(rig_.free_slots(kSwa), 58u) << "two blocks of the window are left";
  EXPECT_EQ(rig_.free_slots(kMamba), 20u);
  EXPECT_SOUND(rig_);
  (void)rig_.tree().evict(100);
  EXPECT_EQ(rig_.free_slots(kSwa), 60u);
  EXPECT_SOUND(rig_);
}

TEST_F(AuxTest, AuxIsEvictedAloneAndTheBlocksStay) {
  const Path a = make_path(1, 20);
  const Path b = make_path(2, 20);
  put_with_window(a);
  put_with_window(b);
  EXPECT_EQ(rig_.tree().evict_aux(kSwa, kWindow), kWindow);
  EXPECT_EQ(rig_.hit(a, kMaskFull | kMaskSwa), 0u) << "the older window goes whole";
  EXPECT_EQ(rig_.hit(b, kMaskFull | kMaskSwa), 20u);
  EXPECT_EQ(rig_.hit(a), 20u);
  EXPECT_SOUND(rig_);
}

TEST_F(AuxTest, WhatIsLeftOfABrokenWindowGoesBeforeAWholeOne) {
  const Path a = make_path(1, 20);
  const Path b = make_path(2, 20);
  put_with_window(a);
  put_with_window(b);
  EXPECT_EQ(rig_.tree().evict_aux(kSwa, 1), 1u);
  EXPECT_EQ(rig_.tree().evict_aux(kSwa, 3), 3u);
  EXPECT_EQ(rig_.hit(b, kMaskFull | kMaskSwa), 20u);
  EXPECT_SOUND(rig_);
}

TEST_F(AuxTest, ATouchedWindowGetsASecondChance) {
  const Path a = make_path(1, 20);
  const Path b = make_path(2, 20);
  put_with_window(a);
  put_with_window(b);
  rig_.put_aux(kMamba, b, 1);
  EXPECT_EQ(rig_.tree().evict_aux(kMamba, 1), 1u);  // the clock moves
  const TreeRig::Found found = rig_.find(a, kMaskFull | kMaskSwa);
  rig_.tree().touch(found.match, found.window);
  EXPECT_EQ(rig_.tree().evict_aux(kSwa, kWindow), kWindow);
  EXPECT_EQ(rig_.hit(a, kMaskFull | kMaskSwa), 20u);
  EXPECT_EQ(rig_.hit(b, kMaskFull | kMaskSwa), 0u);
}

TEST_F(AuxTest, AllocationOfAuxIsAllOrNone) {
  std::vector<Path> paths;
  for (std::uint64_t i = 0; i < 15; ++i) {
    paths.push_back(make_path(i, 6));
    put_with_window(paths.back());
  }
  EXPECT_EQ(rig_.free_slots(kSwa), 0u);
  for (std::uint32_t i = 0; i < 5; ++i) {
    rig_.pin(rig_.find(paths[i], kMaskFull | kMaskSwa), i, kMaskFull | kMaskSwa);
  }
  EXPECT_TRUE(rig_.allocate(41, kSwa).empty());
  EXPECT_EQ(rig_.free_slots(kSwa), 40u) << "what was evicted stays evicted";
  EXPECT_EQ(rig_.allocate(40, kSwa).size(), 40u);
  for (std::uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(rig_.hit(paths[i], kMaskFull | kMaskSwa), 6u);
  }
  EXPECT_SOUND(rig_);
}

TEST_F(AuxTest, APinOfOtherComponentsDoesNotHoldAux) {
  const Path path = make_path(1, 20);
  put_with_window(path);
  rig_.put_aux(kMamba, path, 1);
  rig_.pin(rig_.find(path), 0, kMaskFull);
  EXPECT_EQ(rig_.allocate(60, kSwa).size(), 60u);
  EXPECT_EQ(rig_.free_slots(kMamba), 19u);
  EXPECT_EQ(rig_.hit(path), 20u);
  EXPECT_SOUND(rig_);
}

TEST_F(AuxTest, WithoutSideBlocksAnInsertEvictsTheOldestAux) {
  // A side block per segment that carries a window: more such segments than side blocks.
  TreeRig rig(small_plan(400, 40, 0, kWindow));
  const std::uint32_t sides = rig.tree().layout().side_blocks - 1;
  std::vector<Path> paths;
  for (std::uint64_t i = 0; i < sides + 3; ++i) {
    paths.push_back(make_path(i, 2));
    rig.put(paths.back());
    const Slots slots = rig.allocate(1, kSwa);
    ASSERT_EQ(slots.size(), 1u);
    EXPECT_EQ(rig.insert_aux(kSwa, first_of(paths.back(), 1), slots).error, ErrorCode::OK);
    ASSERT_SOUND(rig);
  }
  EXPECT_EQ(rig.hit(first_of(paths[0], 1), kMaskSwa), 0u);
  EXPECT_EQ(rig.hit(first_of(paths.back(), 1), kMaskSwa), 1u);
}

TEST_F(AuxTest, WhenAllSideBlocksArePinnedAnInsertIsMempoolFull) {
  TreeRig rig(small_plan(400, 40, 0, kWindow));
  const std::uint32_t sides = rig.tree().layout().side_blocks - 1;
  for (std::uint32_t i = 0; i < sides; ++i) {
    const Path path = make_path(i, 1);
    rig.put(path);
    rig.put_aux(kSwa, path, 1);
    rig.pin(rig.find(path, kMaskFull | kMaskSwa), i, kMaskFull | kMaskSwa);
  }
  const Path path = make_path(1000, 1);
  rig.put(path);
  const Slots slots = rig.allocate(1, kSwa);
  const InsertOutcome outcome = rig.insert_aux(kSwa, path, slots);
  EXPECT_EQ(outcome.error, ErrorCode::MEMPOOL_FULL);
  EXPECT_EQ(outcome.unused, slots);
  EXPECT_EQ(outcome.first, outcome.last);
  EXPECT_SOUND(rig);
}

// Fills the side blocks of `rig`: MAMBA alone in the first `mambas`, SWA alone, and pinned, in the
// others but `left`.
void fill_sides(TreeRig& rig, std::uint32_t mambas, std::uint32_t left = 0) {
  const std::uint32_t sides = rig.tree().layout().side_blocks - 1 - left;
  for (std::uint32_t i = 0; i < sides; ++i) {
    const Path path = make_path(i, 1);
    rig.put(path);
    rig.put_aux(i < mambas ? kMamba : kSwa, path, 1);
    if (i >= mambas) rig.pin(rig.find(path, kMaskSwa), i, kMaskFull | kMaskSwa);
  }
}

TEST_F(AuxTest, WhenItsOwnSideBlocksArePinnedAnInsertTakesOneOfTheOtherPool) {
  TreeRig rig(small_plan(400, 48, 12, kWindow));
  constexpr std::uint32_t kMambas = 3;
  fill_sides(rig, kMambas);
  for (std::uint32_t i = 0; i < kMambas; ++i) {
    const Path path = make_path(1000 + i, 1);
    rig.put(path);
    rig.put_aux(kSwa, path, 1);
    rig.pin(rig.find(path, kMaskSwa), 60 + i, kMaskFull | kMaskSwa);
    EXPECT_EQ(rig.hit(make_path(i, 1), kMaskMamba), 0u) << "the oldest goes first";
    EXPECT_EQ(rig.free_slots(kMamba), 12 - kMambas + i + 1) << "and no other";
    ASSERT_SOUND(rig);
  }
  const Path path = make_path(2000, 1);
  rig.put(path);
  const Slots slots = rig.allocate(1, kMamba);
  EXPECT_EQ(rig.insert_aux(kMamba, path, slots).error, ErrorCode::MEMPOOL_FULL);
  rig.unpin(61);
  EXPECT_EQ(rig.insert_aux(kMamba, path, slots).error, ErrorCode::OK);
  EXPECT_EQ(rig.hit(make_path(1001, 1), kMaskSwa), 0u);
  EXPECT_SOUND(rig);
}

TEST_F(AuxTest, ASideBlockWithAPinnedSlotKeepsItsOtherSlotsToo) {
  TreeRig rig(small_plan(400, 48, 12, kWindow));
  const Path shared = make_path(500, 8);
  rig.put(shared);
  rig.put_aux(kSwa, first_of(shared, 1), 1);
  rig.put_aux(kSwa, shared, 1);
  rig.put_aux(kMamba, shared, 1);
  rig.pin(rig.find(first_of(shared, 1), kMaskSwa), 63, kMaskFull | kMaskSwa);
  fill_sides(rig, /*mambas=*/0, /*left=*/1);
  const Path path = make_path(1000, 1);
  rig.put(path);
  for (const Component c : {kSwa, kMamba}) {
    const Slots slots = rig.allocate(1, c);
    ASSERT_EQ(slots.size(), 1u);
    const std::uint32_t free_before = rig.free_slots(c);
    EXPECT_EQ(rig.insert_aux(c, path, slots).error, ErrorCode::MEMPOOL_FULL);
    EXPECT_EQ(rig.free_slots(c), free_before) << "evicted in vain";
    rig.tree().recycle(c, slots);
  }
  EXPECT_EQ(rig.hit(shared, kMaskMamba), 8u);
  EXPECT_SOUND(rig);
}

TEST_F(AuxTest, ChangedAuxWordsAndSidesAreNoticedByValidate) {
  const Path path = make_path(1, 20);
  put_with_window(path);
  const TreeRig::Found found = rig_.find(path, kMaskFull | kMaskSwa);
  const TreeRig::Found full = rig_.find(path);
  EXPECT_EQ(rig_.tree().evict_aux(kSwa, 1), 1u);
  EXPECT_FALSE(rig_.tree().validate(found.match, found.window));
  EXPECT_TRUE(rig_.tree().validate(full.match, full.window)) << "FULL rests on nothing of it";
  // The same slot at the same place again is another word.
  rig_.put_aux(kSwa, path, 1);
  EXPECT_FALSE(rig_.tree().validate(found.match, found.window));
}

TEST(AuxOnePoolTest, MambaAloneUsesTheFirstWordsOfASideBlock) {
  TreeRig rig(small_plan(100, 0, 10));
  const Path path = make_path(1, 20);
  rig.put(path);
  rig.put_aux(kMamba, path, 1);
  rig.put_aux(kMamba, first_of(path, 4), 1);
  EXPECT_EQ(rig.hit(path, kMaskMamba), 20u);
  EXPECT_SOUND(rig);
  EXPECT_EQ(rig.tree().evict_aux(kMamba, 2), 2u);
  EXPECT_EQ(rig.hit(path, kMaskMamba), 0u);
  EXPECT_SOUND(rig);
}

}  // namespace
}  // namespace radixshmem
