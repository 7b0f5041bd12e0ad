// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Reset, sweep and the rebuild: what goes, what pins keep, what recovery makes of it.
#include <gtest/gtest.h>

#include "tests/tree/tree_rig.h"

namespace radixshmem {
namespace {

class ResetTest : public ::testing::Test {
 protected:
  ResetTest() : rig_(small_plan(300, 40, 10)) {
    trunk_ = make_path(1, 40);
    branch_ = branch_of(trunk_, 20, 2, 30);
    rig_.put(trunk_);
    rig_.put(branch_);
    rig_.put_aux(Component::kSwa, branch_, 4);
    rig_.put_aux(Component::kMamba, branch_, 1);
  }
  TreeRig rig_;
  Path trunk_;
  Path branch_;
};

TEST_F(ResetTest, WithoutPinsEverythingIsFreeAtOnce) {
  rig_.tree().reset();
  EXPECT_EQ(rig_.hit(trunk_), 0u);
  EXPECT_EQ(rig_.free_slots(), 300u);
  EXPECT_EQ(rig_.free_slots(Component::kSwa), 40u);
  EXPECT_EQ(rig_.free_slots(Component::kMamba), 10u);
  EXPECT_EQ(rig_.segments(), 0u);
  EXPECT_EQ(rig_.tree().arena().pages_in_use(), 0u);
  EXPECT_SOUND(rig_);
  rig_.put(trunk_);
  EXPECT_EQ(rig_.hit(trunk_), 40u);
}

TEST_F(ResetTest, PinnedSlotsStayUntilTheirPinGoes) {
  const TreeRig::Found found = rig_.find(branch_);
  rig_.pin(found, 0);
  rig_.tree().reset();
  EXPECT_EQ(rig_.hit(branch_), 0u);
  EXPECT_SOUND(rig_);
  for (const std::int32_t slot : found.slots) {
    EXPECT_EQ(rig_.tree().pool(Component::kFull).owner(static_cast<SlotId>(slot)), kOwnerTree);
  }
  EXPECT_FALSE(rig_.tree().validate(found.match, found.window));
  rig_.unpin(0);
  rig_.tree().sweep();
  EXPECT_EQ(rig_.free_slots(), 300u);
  EXPECT_EQ(rig_.free_slots(Component::kSwa), 40u);
  EXPECT_SOUND(rig_);
}

TEST_F(ResetTest, AllocationNeverTakesAPinnedZombiesSlots) {
  const TreeRig::Found found = rig_.find(branch_);
  rig_.pin(found, 0);
  rig_.tree().reset();
  const Slots got = rig_.allocate(300);
  EXPECT_GT(got.size(), 0u);
  EXPECT_LE(got.size(), 250u);
  for (const std::int32_t slot : found.slots) {
    EXPECT_EQ(std::count(got.begin(), got.end(), slot), 0);
  }
  EXPECT_SOUND(rig_);
  rig_.unpin(0);
  EXPECT_EQ(rig_.allocate(300).size(), 300u - got.size()) << "swept when somebody needs it";
}

TEST_F(ResetTest, ANewTreeGrowsBesideThePinnedOldOne) {
  const TreeRig::Found found = rig_.find(branch_);
  rig_.pin(found, 0);
  rig_.tree().reset();
  rig_.put(branch_);
  EXPECT_EQ(rig_.hit(branch_), 50u);
  EXPECT_SOUND(rig_);
  (void)rig_.tree().evict(1000);
  EXPECT_EQ(rig_.blocks(), 0u) << "the old pin does not hold the new tree";
  rig_.tree().reset();
  EXPECT_SOUND(rig_);
}

TEST_F(ResetTest, ConsumersAreToldOnceAndTheSweepSaysNothing) {
  ChangeRing::Cursor cursor = rig_.tree().ring().at_head();
  rig_.pin(rig_.find(branch_), 0);
  rig_.tree().reset();
  rig_.unpin(0);
  rig_.tree().sweep();
  std::array<Change, 8> out;
  bool resync = false;
  ASSERT_EQ(rig_.tree().ring().drain(cursor, out, resync), 1u);
  EXPECT_EQ(out[0].kind, ChangeKind::kCleared);
  EXPECT_FALSE(resync);
}

TEST_F(ResetTest, ARepairOfASoundTreeChangesNothingThatCounts) {
  ChangeRing::Cursor cursor = rig_.tree().ring().at_head();
  const Slots before = rig_.find(branch_).slots;
  const std::uint32_t blocks = rig_.blocks();
  rig_.tree().repair();
  EXPECT_SOUND(rig_);
  EXPECT_EQ(rig_.find(branch_).slots, before);
  EXPECT_EQ(rig_.find(branch_, kMaskFull | kMaskSwa | kMaskMamba).match.end, 50u);
  EXPECT_EQ(rig_.blocks(), blocks);
  std::array<Change, 8> out;
  bool resync = false;
  EXPECT_EQ(rig_.tree().ring().drain(cursor, out, resync), 0u);
  EXPECT_TRUE(resync) << "every rebuild asks consumers to resync";
}

TEST_F(ResetTest, ARepairRestoresEverythingDerived) {
  Tree& tree = rig_.tree();
  Control& control = tree.control();
  control.eviction.head = control.eviction.tail = 0;
  control.sides.free_head = control.sides.free_count = 0;
  for (auto& list : control.sides.lists) list.head = list.tail = 0;
  for (auto& pool : control.pools) pool.lists[0].head = pool.lists[0].count = 0;
  control.live_blocks = control.live_segments = 9999;
  control.arena.pages_in_use = 1;
  control.table.line_mask = 7;
  tree.arena().for_each([](SegmentId, Segment s) {
    if (s.head().live()) s.clear_branches();
  });
  EXPECT_NE(rig_.problems(), "");
  tree.repair();
  EXPECT_SOUND(rig_);
  EXPECT_EQ(rig_.hit(branch_, kMaskFull | kMaskSwa | kMaskMamba), 50u);
  EXPECT_EQ(rig_.hit(trunk_), 40u);
}

TEST_F(ResetTest, ARepairCutsOffWhatHasNoParentAndKeepsItForItsPins) {
  const TreeRig::Found found = rig_.find(branch_);
  rig_.pin(found, 0);
  const SegmentId orphan = found.match.steps.back().segment;
  rig_.tree().arena().header(orphan)->parent = 5;
  rig_.tree().repair();
  EXPECT_SOUND(rig_);
  EXPECT_LT(rig_.hit(branch_), 50u);
  EXPECT_EQ(rig_.tree().arena().segment(orphan).head().state, SegmentState::kZombie);
  EXPECT_EQ(rig_.hit(trunk_), 40u);
  (void)rig_.tree().evict(1000);
  EXPECT_EQ(rig_.tree().arena().segment(orphan).head().state, SegmentState::kZombie);
  rig_.unpin(0);
  (void)rig_.tree().evict(1000);
  EXPECT_EQ(rig_.free_slots(), 300u);
  EXPECT_SOUND(rig_);
}

TEST_F(ResetTest, RecoveryUndoesAnOpenTransactionAndRaisesOverflow) {
  Tree& tree = rig_.tree();
  ChangeRing::Cursor cursor = tree.ring().at_head();
  const TreeRig::Found found = rig_.find(branch_);
  const SegmentId id = found.match.steps.back().segment;
  auto& head = tree.arena().header(id)->head;
  const SegmentHead before = SegmentHead::unpack(head);
  tree.log().store_head(head, next_head(head, SegmentState::kLive, 1, before.count));
  EXPECT_NE(rig_.problems(), "");
  tree.recover();
  EXPECT_SOUND(rig_);
  EXPECT_EQ(rig_.hit(branch_), 50u);
  EXPECT_FALSE(tree.validate(found.match, found.window)) << "a newer version than ever";
  EXPECT_EQ(tree.control().work.recoveries_undone.load(), 1u);
  std::array<Change, 8> out;
  bool resync = false;
  (void)tree.ring().drain(cursor, out, resync);
  EXPECT_FALSE(resync) << "nothing had been published";
}

TEST_F(ResetTest, RecoveryFromAnUnusableLogQuarantinesWhatNobodyNames) {
  Tree& tree = rig_.tree();
  const Slots mine = rig_.allocate(1);
  const auto slot = static_cast<SlotId>(mine[0]);
  tree.pool(Component::kFull).set_owner(slot, kOwnerTree);  // half an insert
  auto* log = reinterpret_cast<UndoLogShared*>(rig_.memory().base() +
                                               tree.layout().area(AreaKind::kUndoLog).offset);
  log->entry[0].where = 77;  // an unknown tag
  tree.recover();
  EXPECT_SOUND(rig_);
  EXPECT_EQ(tree.pool(Component::kFull).owner(slot), kOwnerQuarantine);
  EXPECT_EQ(tree.control().work.quarantined_slots.load(), 1u);
  EXPECT_EQ(rig_.hit(branch_), 50u);
}

TEST_F(ResetTest, RecoveryFinishesAResetThatWasBegun) {
  Tree& tree = rig_.tree();
  tree.control().intent = kIntentReset;
  tree.recover();
  EXPECT_EQ(rig_.hit(trunk_), 0u);
  EXPECT_SOUND(rig_);
  tree.sweep();
  EXPECT_EQ(rig_.free_slots(), 300u);
  EXPECT_SOUND(rig_);
}

}  // namespace
}  // namespace radixshmem
