// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "tests/tree/tree_rig.h"

namespace radixshmem {
namespace {

TEST(EvictTest, TakesTheLeastRecentlyInsertedTailFirst) {
  TreeRig rig(small_plan(100));
  const Path a = make_path(1, 10);
  const Path b = make_path(2, 10);
  rig.put(a);
  rig.put(b);
  EXPECT_EQ(rig.tree().evict(4), 4u);
  EXPECT_EQ(rig.hit(a), 6u) << "the tail goes, the head stays";
  EXPECT_EQ(rig.hit(b), 10u);
  EXPECT_SOUND(rig);
}

TEST(EvictTest, TakesExactlyWhatIsAskedFor) {
  TreeRig rig(small_plan(400));
  for (std::uint64_t i = 0; i < 12; ++i) rig.put(make_path(i, 30));
  std::uint32_t blocks = 360;
  for (const std::uint32_t wanted : {1u, 2u, 17u, 64u, 100u}) {
    EXPECT_EQ(rig.tree().evict(wanted), wanted);
    blocks -= wanted;
    EXPECT_EQ(rig.blocks(), blocks);
    EXPECT_SOUND(rig);
  }
  EXPECT_EQ(rig.tree().evict(1000), blocks) << "then all there is";
  EXPECT_EQ(rig.segments(), 0u);
  EXPECT_EQ(rig.free_slots(), 400u);
  EXPECT_EQ(rig.tree().arena().pages_in_use(), 0u);
  EXPECT_SOUND(rig);
}

TEST(EvictTest, WhatAnAllocationEvictsIsItsOwnAtOnce) {
  TreeRig rig(small_plan(100));
  for (std::uint64_t i = 0; i < 3; ++i) rig.put(make_path(i, 30));
  const Slots slots = rig.allocate(25);  // 10 are free
  ASSERT_EQ(slots.size(), 25u);
  EXPECT_EQ(std::set<std::int32_t>(slots.begin(), slots.end()).size(), 25u);
  EXPECT_EQ(rig.tree().first_bad_slot(Component::kFull, slots, TreeRig::kGroup, false), 25u);
  EXPECT_EQ(rig.free_slots(), 0u);
  EXPECT_EQ(rig.blocks(), 75u);
  EXPECT_SOUND(rig);
}

TEST(EvictTest, ATouchedPathGetsASecondChance) {
  TreeRig rig(small_plan(100));
  const Path a = make_path(1, 10);
  const Path b = make_path(2, 10);
  rig.put(a);
  rig.put(b);
  rig.tree().evict(0);
  (void)rig.tree().evict(1);  // the clock moves: a loses a block
  rig.touch(a);
  EXPECT_EQ(rig.tree().evict(5), 5u);
  EXPECT_EQ(rig.hit(a), 9u);
  EXPECT_EQ(rig.hit(b), 5u);
}

TEST(EvictTest, AMatchAloneTouchesNothing) {
  TreeRig rig(small_plan(100));
  const Path a = make_path(1, 10);
  rig.put(a);
  rig.put(make_path(2, 10));
  (void)rig.tree().evict(1);
  EXPECT_EQ(rig.hit(a), 9u);
  EXPECT_EQ(rig.tree().evict(9), 9u);
  EXPECT_EQ(rig.hit(a), 0u);
}

TEST(EvictTest, WhenEverythingIsTouchedSomethingGoesAnyway) {
  TreeRig rig(small_plan(2000));
  for (std::uint64_t i = 0; i < 400; ++i) rig.put(make_path(i, 3));
  (void)rig.tree().evict(1);
  for (std::uint64_t i = 0; i < 400; ++i) rig.touch(first_of(make_path(i, 3), 2));
  EXPECT_EQ(rig.tree().evict(200), 200u);
  EXPECT_SOUND(rig);
}

TEST(EvictTest, ABranchKeepsTheBlocksBeforeIt) {
  TreeRig rig(small_plan(200));
  const Path trunk = make_path(1, 30);
  const Path branch = branch_of(trunk, 20, 2, 10);
  rig.put(trunk);
  rig.put(branch);
  (void)rig.tree().evict(1);
  rig.touch(branch);
  EXPECT_EQ(rig.tree().evict(9), 9u);
  EXPECT_EQ(rig.hit(trunk), 20u) << "the tail beyond the branch goes although the trunk is busy";
  EXPECT_EQ(rig.hit(branch), 30u);
  EXPECT_EQ(rig.tree().evict(1), 1u);
  EXPECT_EQ(rig.hit(branch), 29u) << "then the branch, before its ancestors";
  EXPECT_SOUND(rig);
}

TEST(EvictTest, AnAncestorGoesOnceItsLastChildHasGone) {
  TreeRig rig(small_plan(200));
  const Path trunk = make_path(1, 16);
  rig.put(trunk);
  for (std::uint64_t i = 0; i < 5; ++i) rig.put(branch_of(trunk, 16, 10 + i, 8));
  EXPECT_EQ(rig.tree().evict(40), 40u);
  EXPECT_EQ(rig.blocks(), 16u);
  EXPECT_EQ(rig.hit(trunk), 16u);
  EXPECT_SOUND(rig);
  EXPECT_EQ(rig.tree().evict(16), 16u);
  EXPECT_EQ(rig.segments(), 0u);
}

TEST(EvictTest, OneCallTakesALongPathWholeTailFirst) {
  TreeRig rig(small_plan(1000));
  const Path path = make_path(1, 500);
  rig.put(path);
  EXPECT_EQ(rig.tree().evict(480), 480u);
  EXPECT_EQ(rig.hit(path), 20u);
  EXPECT_SOUND(rig);
}

TEST(EvictTest, AParentThatBecomesALeafIsAsRecentAsItsLastChild) {
  TreeRig rig(small_plan(200));
  const Path trunk = make_path(1, 16);
  rig.put(trunk);  // old
  const Path branch = branch_of(trunk, 16, 2, 4);
  rig.put(branch);
  const Path other = make_path(3, 10);
  rig.put(other);
  (void)rig.tree().evict(1);  // the clock moves
  rig.touch(first_of(branch, 19));
  ASSERT_EQ(rig.tree().evict(10), 10u);  // `other` goes, the branch was touched
  EXPECT_EQ(rig.hit(other), 0u);
  EXPECT_EQ(rig.hit(branch), 19u);
}

TEST(EvictTest, PinnedBlocksAndTheirAncestorsStay) {
  TreeRig rig(small_plan(300));
  const Path trunk = make_path(1, 40);
  const Path branch = branch_of(trunk, 35, 2, 30);
  rig.put(trunk);
  rig.put(branch);
  rig.pin(rig.find(first_of(branch, 50)), 0);
  EXPECT_EQ(rig.tree().evict(1000), 70u - 50u);
  EXPECT_EQ(rig.hit(branch), 50u);
  EXPECT_EQ(rig.hit(trunk), 35u);
  EXPECT_SOUND(rig);
  rig.unpin(0);
  EXPECT_EQ(rig.tree().evict(1000), 50u);
}

TEST(EvictTest, EverythingPinnedEndsAfterOneLap) {
  TreeRig rig(small_plan(300));
  for (std::uint32_t i = 0; i < 20; ++i) {
    const Path path = make_path(i, 5);
    rig.put(path);
    rig.pin(rig.find(path), i);
  }
  EXPECT_EQ(rig.tree().evict(10), 0u);
  EXPECT_EQ(rig.blocks(), 100u);
  EXPECT_SOUND(rig);
}

TEST(EvictTest, APinThatComesBetweenChoiceAndTruncationRollsTheVictimBack) {
  TreeRig rig(small_plan(300));
  const Path a = make_path(1, 10);
  const Path b = make_path(2, 10);
  const Slots slots = rig.put(a);
  rig.put(b);
  const TreeRig::Found found = rig.find(a);
  static TreeRig* racing;
  static const TreeRig::Found* racer;
  racing = &rig;
  racer = &found;
  fault::hook = [](FaultPoint point) {
    if (point == FaultPoint::evict_first_truncated && racer != nullptr) {
      racing->pin(*std::exchange(racer, nullptr), 0);
    }
  };
  const std::uint32_t freed = rig.tree().evict(3);
  fault::hook = nullptr;
  EXPECT_EQ(freed, 3u) << "another victim was found";
  EXPECT_EQ(rig.find(a).slots, slots);
  EXPECT_EQ(rig.hit(b), 7u);
  EXPECT_GT(rig.tree().control().work.eviction_rollbacks.load(), 0u);
  EXPECT_FALSE(rig.tree().validate(found.match, found.window))
      << "the reader must match again: its version is gone";
  EXPECT_SOUND(rig);
}

TEST(EvictTest, AnAncestorOfARolledBackVictimKeepsWhatTheVictimNeeds) {
  TreeRig rig(small_plan(300));
  const Path trunk = make_path(1, 16);
  const Path branch = branch_of(trunk, 8, 2, 4);
  rig.put(trunk);
  rig.put(branch);
  (void)rig.tree().evict(1);       // the clock moves
  rig.touch(first_of(trunk, 15));  // the branch comes first, the trunk in the same batch
  const TreeRig::Found found = rig.find(branch);
  static TreeRig* racing;
  static const TreeRig::Found* racer;
  racing = &rig;
  racer = &found;
  fault::hook = [](FaultPoint point) {
    if (point == FaultPoint::evict_first_truncated && racer != nullptr) {
      racing->pin(*std::exchange(racer, nullptr), 0);
    }
  };
  (void)rig.tree().evict(100);
  fault::hook = nullptr;
  EXPECT_EQ(rig.find(branch).slots, found.slots);
  EXPECT_EQ(rig.hit(trunk), 8u);
  EXPECT_SOUND(rig);
}

TEST(EvictTest, AllocationEvictsWhatIsMissingAndNoMore) {
  TreeRig rig(small_plan(100));
  rig.put(make_path(1, 40));
  rig.put(make_path(2, 40));
  EXPECT_EQ(rig.allocate(20).size(), 20u);
  EXPECT_EQ(rig.blocks(), 80u) << "free slots first";
  EXPECT_EQ(rig.tree().control().work.demand_evictions[0].load(), 0u);
  EXPECT_EQ(rig.allocate(30).size(), 30u);
  EXPECT_EQ(rig.tree().control().work.demand_evictions[0].load(), 1u);
  EXPECT_EQ(rig.blocks(), 50u);
  EXPECT_SOUND(rig);
}

TEST(EvictTest, AShortAllocationIsMaximal) {
  TreeRig rig(small_plan(100));
  const Path pinned = make_path(1, 40);
  rig.put(pinned);
  rig.put(make_path(2, 40));
  rig.pin(rig.find(first_of(pinned, 33)), 0);
  EXPECT_EQ(rig.allocate(100).size(), 67u);
  EXPECT_EQ(rig.blocks(), 33u);
  EXPECT_EQ(rig.allocate(1).size(), 0u);
  EXPECT_SOUND(rig);
}

TEST(EvictTest, RemovedEventsNameEachEvictedBlockOnce) {
  TreeRig rig(small_plan(400));
  std::map<BlockHash, SegmentId> segment_of;
  for (std::uint64_t i = 0; i < 5; ++i) {
    const Path path = make_path(i, 50);
    rig.put(path);
    for (const MatchStep& step : rig.find(path).match.steps) {
      for (Position p = step.start; p < step.start + step.count; ++p) {
        segment_of[path[p]] = step.segment;
      }
    }
  }
  ChangeRing::Cursor cursor = rig.tree().ring().at_head();
  (void)rig.tree().evict(250);
  std::array<Change, 400> out;
  bool resync = false;
  const std::size_t got = rig.tree().ring().drain(cursor, out, resync);
  ASSERT_EQ(got, 250u);
  for (std::size_t i = 0; i < got; ++i) {
    EXPECT_EQ(out[i].kind, ChangeKind::kRemoved);
    EXPECT_EQ(segment_of.at(out[i].hash), out[i].segment);
    EXPECT_EQ(segment_of.erase(out[i].hash), 1u);
  }
}

// What finding a victim costs must not depend on how much there is.
double steps_per_victim(std::uint32_t blocks) {
  IndexPlan plan = small_plan(blocks);
  plan.segment_blocks = 64;
  TreeRig rig(plan);
  std::uint64_t seed = 0;
  const auto conversation = [&] {
    const Path path = make_path(seed++, 100);
    const Slots slots = rig.allocate(100);
    EXPECT_EQ(rig.insert(path, slots, 0).error, ErrorCode::OK);
  };
  while (rig.free_slots() >= 100) conversation();
  const auto& work = rig.tree().control().work;
  const std::uint64_t steps = work.eviction_steps.load();
  const std::uint64_t victims = work.eviction_victims.load();
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const std::uint64_t recent = seed - 1 - mix_hash(i) % (blocks / 200);
    rig.touch(make_path(recent, 100));
    conversation();
  }
  EXPECT_SOUND(rig);
  return static_cast<double>(work.eviction_steps.load() - steps) /
         static_cast<double>(work.eviction_victims.load() - victims);
}

TEST(EvictCostTest, SearchStepsPerVictimDoNotGrowWithTheIndex) {
  const double small = steps_per_victim(10'000);
  const double large = steps_per_victim(100'000);
  EXPECT_GE(small, 1.0);
  EXPECT_LE(small, 8.0);
  EXPECT_LE(large, small * 1.2 + 0.1) << "10k blocks: " << small << ", 100k: " << large;
}

}  // namespace
}  // namespace radixshmem
