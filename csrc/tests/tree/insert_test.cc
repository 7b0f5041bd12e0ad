// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include <gtest/gtest.h>

#include "tests/tree/tree_rig.h"

namespace radixshmem {
namespace {

TEST(InsertTest, WhatWasInsertedIsFoundWithItsSlots) {
  TreeRig rig(small_plan(200));
  const Path path = make_path(1, 70);
  const Slots slots = rig.put(path);
  EXPECT_EQ(rig.find(path).slots, slots);
  EXPECT_EQ(rig.hit(first_of(path, 33)), 33u);
  EXPECT_EQ(rig.blocks(), 70u);
  EXPECT_EQ(rig.segments(), 5u) << "16-block ranges";
  EXPECT_SOUND(rig);
}

TEST(InsertTest, AnUnknownPathIsAMiss) {
  TreeRig rig(small_plan(200));
  rig.put(make_path(1, 20));
  EXPECT_EQ(rig.hit(make_path(2, 20)), 0u);
  EXPECT_EQ(rig.hit({}), 0u);
  // An interior block cannot be looked up on its own.
  EXPECT_EQ(rig.hit({make_path(1, 20)[16]}), 0u);
}

TEST(InsertTest, AppendsFillASegmentBeforeTheyContinueInALargerOne) {
  TreeRig rig(small_plan(200));
  const Path path = make_path(1, 40);
  std::vector<std::uint32_t> segments;
  for (std::size_t n = 1; n <= path.size(); ++n) {
    rig.put(first_of(path, n));
    segments.push_back(rig.segments());
    ASSERT_EQ(rig.hit(path), n);
    ASSERT_SOUND(rig);
  }
  EXPECT_EQ(segments[0], 1u);
  EXPECT_EQ(segments[8], 2u) << "one block, then eight";
  EXPECT_EQ(segments[15], 3u) << "then the rest of the range";
  EXPECT_EQ(segments[31], 4u) << "later ranges begin with full segments";
  EXPECT_EQ(segments[39], 5u);
}

TEST(InsertTest, BranchesShareTheirCommonPrefix) {
  TreeRig rig(small_plan(400));
  const Path trunk = make_path(1, 40);
  rig.put(trunk);
  std::vector<Path> branches;
  for (const std::size_t keep : {1u, 7u, 15u, 16u, 17u, 31u, 32u, 39u}) {
    branches.push_back(branch_of(trunk, keep, 100 + keep, 20));
    rig.put(branches.back());
    ASSERT_SOUND(rig);
  }
  EXPECT_EQ(rig.blocks(), 40u + 8 * 20);
  EXPECT_EQ(rig.hit(trunk), 40u);
  for (const Path& branch : branches) EXPECT_EQ(rig.hit(branch), branch.size());
}

TEST(InsertTest, ManyBranchesAtOneEntryAreCounted) {
  TreeRig rig(small_plan(2000));
  const Path trunk = make_path(1, 16);
  rig.put(trunk);
  for (std::uint64_t i = 0; i < 300; ++i) rig.put(branch_of(trunk, 5, 1000 + i, 1));
  EXPECT_SOUND(rig);
  EXPECT_EQ(rig.segments(), 301u);
}

TEST(InsertTest, MatchedEqualToStartAttachesEverything) {
  TreeRig rig(small_plan(100));
  const Path path = make_path(1, 30);
  rig.put(first_of(path, 10));
  const Slots slots = rig.allocate(20);
  const InsertOutcome outcome = rig.insert(path, slots, 10);
  EXPECT_EQ(outcome.error, ErrorCode::OK);
  EXPECT_TRUE(outcome.unused.empty());
  EXPECT_EQ(outcome.first, 10u);
  EXPECT_EQ(outcome.last, 30u);
}

TEST(InsertTest, ExistingBlocksWinAndTheLeadingSlotsAreUnused) {
  TreeRig rig(small_plan(100));
  const Path path = make_path(1, 30);
  const Slots old = rig.put(first_of(path, 20));
  const Slots slots = rig.allocate(25);
  const InsertOutcome outcome = rig.insert(path, slots, 5);
  EXPECT_EQ(outcome.error, ErrorCode::OK);
  EXPECT_EQ(outcome.unused, Slots(slots.begin(), slots.begin() + 15));
  EXPECT_EQ(outcome.first, 20u);
  EXPECT_EQ(outcome.last, 30u);
  Slots expected = old;
  expected.insert(expected.end(), slots.begin() + 15, slots.end());
  EXPECT_EQ(rig.find(path).slots, expected);
  for (const std::int32_t slot : outcome.unused) {
    EXPECT_EQ(rig.tree().pool(Component::kFull).owner(static_cast<SlotId>(slot)),
              client_owner(TreeRig::kSelf))
        << "recycling them is the caller's choice";
  }
}

TEST(InsertTest, AWhollyExistingPathAttachesNothing) {
  TreeRig rig(small_plan(100));
  const Path path = make_path(1, 20);
  rig.put(path);
  const Slots slots = rig.allocate(12);
  const InsertOutcome outcome = rig.insert(first_of(path, 12), slots, 0);
  EXPECT_EQ(outcome.error, ErrorCode::OK);
  EXPECT_EQ(outcome.unused, slots);
  EXPECT_EQ(outcome.first, outcome.last);
  EXPECT_EQ(rig.blocks(), 20u);
}

TEST(InsertTest, AGapBeforeStartAttachesNothing) {
  TreeRig rig(small_plan(100));
  const Path path = make_path(1, 20);
  rig.put(first_of(path, 5));
  const Slots slots = rig.allocate(10);
  const InsertOutcome outcome = rig.insert(path, slots, 10);
  EXPECT_EQ(outcome.error, ErrorCode::FULL_PATH_MISSING);
  EXPECT_EQ(outcome.unused, slots);
  EXPECT_EQ(outcome.first, outcome.last);
  EXPECT_EQ(rig.hit(path), 5u);
  EXPECT_SOUND(rig);
}

TEST(InsertTest, NoSlotsAttachNothingWhereThePathExists) {
  TreeRig rig(small_plan(100));
  const Path path = make_path(1, 20);
  rig.put(first_of(path, 10));
  EXPECT_EQ(rig.insert(first_of(path, 10), {}, 10).error, ErrorCode::OK);
  EXPECT_EQ(rig.insert(path, {}, 20).error, ErrorCode::FULL_PATH_MISSING);
  EXPECT_EQ(rig.blocks(), 10u);
}

TEST(InsertTest, ASlotOfAnotherOwnerIsRefusedAndNothingPasses) {
  TreeRig rig(small_plan(100));
  const Path path = make_path(1, 20);
  const Slots used = rig.put(make_path(2, 3));
  Slots slots = rig.allocate(20);
  const auto refused = [&](std::int32_t bad) {
    Slots spoilt = slots;
    spoilt[13] = bad;
    const InsertOutcome outcome = rig.insert(path, spoilt, 0);
    EXPECT_EQ(outcome.error, ErrorCode::BAD_REQUEST) << bad;
    EXPECT_TRUE(outcome.unused.empty()) << "every slot is still the caller's";
    EXPECT_EQ(rig.hit(path), 0u);
  };
  refused(used[0]);  // in the tree
  refused(99);       // free
  refused(-1);
  refused(100);
  refused(0x7fffffff);
  rig.tree().clients().claim(2, 2, 1);
  EXPECT_EQ(rig.insert(path, slots, 0, /*group=*/2).error, ErrorCode::BAD_REQUEST);
  EXPECT_SOUND(rig);
  EXPECT_EQ(rig.insert(path, slots, 0).error, ErrorCode::OK);
}

TEST(InsertTest, AMemberOfTheGroupMayInsertWhatAnotherAllocated) {
  TreeRig rig(small_plan(100));
  rig.tree().clients().claim(2, TreeRig::kGroup, 1);
  std::vector<SlotId> slots(5);
  ASSERT_EQ(rig.tree().allocate(Component::kFull, slots, 2), 5u);
  const Path path = make_path(1, 5);
  EXPECT_EQ(rig.insert(path, Slots(slots.begin(), slots.end()), 0).error, ErrorCode::OK);
  EXPECT_SOUND(rig);
}

TEST(InsertTest, TheSameHashUnderAnotherParentIsRefused) {
  TreeRig rig(small_plan(200));
  const Path a = make_path(1, 20);
  rig.put(a);
  Path b = make_path(2, 16);
  rig.put(b);
  b.insert(b.end(), a.begin() + 16, a.end());  // not chained: a caller's error
  const Slots slots = rig.allocate(4);
  const InsertOutcome outcome = rig.insert(b, slots, 16);
  EXPECT_EQ(outcome.error, ErrorCode::BAD_REQUEST);
  EXPECT_TRUE(outcome.unused.empty());
  EXPECT_SOUND(rig);
}

TEST(InsertTest, TheSameHashAtTwoPositionsIsTwoBlocks) {
  TreeRig rig(small_plan(200));
  const Path a = make_path(1, 17);
  rig.put(a);
  const Path lone = {a[16]};  // the hash that starts a's second range, now at position 0
  rig.put(lone);
  EXPECT_SOUND(rig);
  EXPECT_EQ(rig.segments(), 3u);
  EXPECT_EQ(rig.find(a).slots.size(), 17u);
  EXPECT_EQ(rig.find(lone).slots.size(), 1u);
  EXPECT_NE(rig.find(a).slots[16], rig.find(lone).slots[0]);
}

TEST(InsertTest, HashValueZeroIsLegal) {
  TreeRig rig(small_plan(100));
  const Path path = {0, 5, 6};
  rig.put(path);
  EXPECT_EQ(rig.hit(path), 3u);
  EXPECT_SOUND(rig);
}

TEST(InsertTest, WhenPagesRunOutSmallerSegmentsAreChained) {
  // Every child at position 16 wants a full segment; four pages hold 816 of them.
  TreeRig rig(small_plan(2000), 5);
  const Path trunk = make_path(1, 16);
  rig.put(trunk);
  // A page of single-block segments is left open.
  rig.put(make_path(2, 1));
  rig.put(make_path(3, 2));
  std::uint64_t i = 0;
  const std::uint32_t per_page = rig.tree().arena().classes().per_page[3];
  for (; i < per_page + 100; ++i) rig.put(branch_of(trunk, 16, 1000 + i, 3));
  EXPECT_SOUND(rig);
  for (std::uint64_t k = 0; k < i; ++k) {
    ASSERT_EQ(rig.hit(branch_of(trunk, 16, 1000 + k, 3)), 19u) << k;
  }
}

TEST(InsertTest, WithoutFreeSegmentsAnInsertEvictsButNeverItsOwnPath) {
  TreeRig rig(small_plan(2000), 2);  // one page
  const Path trunk = make_path(1, 20);
  rig.put(trunk);
  const std::uint32_t per_page = rig.tree().arena().classes().per_page[3];
  for (std::uint64_t i = 0; i < 2 * per_page; ++i) {
    const Path branch = branch_of(trunk, 16 + i % 4, 1000 + i, 1);
    rig.put(branch);
    ASSERT_EQ(rig.hit(branch), branch.size());
  }
  EXPECT_LE(rig.segments(), per_page);
  EXPECT_SOUND(rig);
}

TEST(InsertTest, MempoolFullTellsWhatLandedAndGivesTheRestBack) {
  TreeRig rig(small_plan(4000), 2);  // one page of full segments
  const std::uint32_t per_page = rig.tree().arena().classes().per_page[3];
  const Path path = make_path(1, per_page * 16 + 100);
  const Slots slots = rig.allocate(static_cast<std::uint32_t>(path.size()));
  // The path is its own only victim, and protected: its first segments are of smaller classes or
  // of the one page, so it lands in part.
  const InsertOutcome outcome = rig.insert(path, slots, 0);
  EXPECT_EQ(outcome.error, ErrorCode::MEMPOOL_FULL);
  EXPECT_EQ(outcome.first, 0u);
  EXPECT_EQ(outcome.last, per_page * 16);
  EXPECT_EQ(outcome.unused, Slots(slots.begin() + outcome.last, slots.end()));
  EXPECT_EQ(rig.hit(path), outcome.last);
  EXPECT_SOUND(rig);
}

TEST(InsertTest, StoredEventsNameEveryBlockInOrder) {
  TreeRig rig(small_plan(200));
  ChangeRing::Cursor cursor = rig.tree().ring().at_head();
  const Path path = make_path(1, 20);
  rig.put(path);
  std::array<Change, 64> out;
  bool resync = false;
  ASSERT_EQ(rig.tree().ring().drain(cursor, out, resync), 20u);
  EXPECT_FALSE(resync);
  const auto steps = rig.find(path).match.steps;
  ASSERT_EQ(steps.size(), 2u);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(out[i].kind, ChangeKind::kStored);
    EXPECT_EQ(out[i].hash, path[i]);
    EXPECT_EQ(out[i].position, i);
    EXPECT_EQ(out[i].parent, i == 0 ? 0 : path[i - 1]);
    EXPECT_EQ(out[i].segment, steps[i / 16].segment);
  }
}

}  // namespace
}  // namespace radixshmem
