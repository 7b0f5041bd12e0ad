// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The walker finds each kind of damage and names the invariant; a repair heals what is derived.
#include <gtest/gtest.h>

#include <functional>

#include "tests/tree/tree_rig.h"

namespace radixshmem {
namespace {

class CheckTest : public ::testing::Test {
 protected:
  CheckTest() : rig_(small_plan(300, 40, 10)), path_(make_path(1, 40)) {
    rig_.put(path_);
    rig_.put(branch_of(path_, 20, 2, 5));
    rig_.put_aux(Component::kSwa, path_, 4);
    held_ = static_cast<SlotId>(rig_.allocate(1)[0]);
    const TreeRig::Found found = rig_.find(path_);
    first_ = found.match.steps.front().segment;
    second_ = found.match.steps[1].segment;
    last_ = found.match.steps.back().segment;
  }
  [[nodiscard]] SegmentHeader* header(SegmentId id) { return rig_.tree().arena().header(id); }
  [[nodiscard]] SlotPool& full() { return rig_.tree().pool(Component::kFull); }
  // The word of the SWA slot of the last block.
  [[nodiscard]] std::atomic<std::uint64_t>* last_aux_word() {
    const IndexLayout& layout = rig_.tree().layout();
    std::byte* block = rig_.memory().base() + layout.area(AreaKind::kSideBlocks).offset +
                       std::uint64_t{header(last_)->side.load()} * layout.side_bytes;
    return reinterpret_cast<std::atomic<std::uint64_t>*>(block + kSideHeaderBytes) +
           (path_.size() - 1 - header(last_)->start.load());
  }
  void expect(const char* invariant) {
    const std::vector<std::string> found = rig_.tree().check();
    for (const std::string& line : found) {
      if (line.rfind(std::string(invariant) + " ", 0) == 0) return;
    }
    ADD_FAILURE() << "no line begins with " << invariant << ":\n" << rig_.problems();
  }

  TreeRig rig_;
  Path path_;
  SlotId held_ = 0;
  SegmentId first_ = 0;
  SegmentId second_ = 0;
  SegmentId last_ = 0;
};

TEST_F(CheckTest, ASoundTreeHasNoProblems) {
  EXPECT_SOUND(rig_);
}

TEST_F(CheckTest, I1SlotInTwoEntries) {
  const Segment s = rig_.tree().arena().segment(first_);
  s.set_slot(0, s.slot(1));
  expect("I1");
}
TEST_F(CheckTest, I1SlotOutOfRange) {
  rig_.tree().arena().segment(first_).set_slot(0, 300);
  expect("I1");
}
TEST_F(CheckTest, I1TreeSlotWithAnotherOwner) {
  full().restore_owner(rig_.tree().arena().segment(first_).slot(0), client_owner(1));
  expect("I1");
}
TEST_F(CheckTest, I1TreeSlotThatNothingNames) {
  full().restore_owner(held_, kOwnerTree);
  expect("I1");
}
TEST_F(CheckTest, I1FreeSlotNotInTheList) {
  full().restore_owner(held_, 0);
  expect("I1");
}
TEST_F(CheckTest, I1FreeListLoop) {
  const SlotId head = full().free_head() - 1;
  full().restore_owner(full().owner(head) - 1, head + 1);
  expect("I1");
}
TEST_F(CheckTest, I1FreeListOutOfRange) {
  full().restore_owner(full().free_head() - 1, kOwnedBase - 1);
  expect("I1");
}
TEST_F(CheckTest, I1FreeCountWrong) {
  rig_.tree().control().pools[0].lists[0].count.fetch_add(1);
  expect("I1");
}
TEST_F(CheckTest, I2CountAndOwnedDiffer) {
  header(last_)->head = next_head(header(last_)->head, SegmentState::kLive, 1, 8);
  expect("I2");
}
TEST_F(CheckTest, I2CrossingOfARange) {
  header(last_)->start.fetch_add(15);
  expect("I2");
}
TEST_F(CheckTest, I2HashTwice) {
  const Segment s = rig_.tree().arena().segment(first_);
  rig_.put({s.hash(0) + 1});
  const SegmentId twin = rig_.find({s.hash(0) + 1}).match.steps[0].segment;
  rig_.tree().arena().segment(twin).hashes()[0] = s.hash(0);
  expect("I2");
}
TEST_F(CheckTest, I3ParentOutOfRange) {
  header(second_)->parent = 0xfffffff0u;
  expect("I3");
}
TEST_F(CheckTest, I3ParentEndsBeforeItsChild) {
  header(last_)->parent = first_;
  expect("I3");
}
TEST_F(CheckTest, I3ParentThatClaimsMoreThanItCanHold) {
  header(first_)->head = next_head(header(first_)->head, SegmentState::kLive, 1023, 1023);
  header(last_)->parent = first_;
  expect("I3");
}
TEST_F(CheckTest, I3RootWithAParent) {
  header(first_)->parent = last_;
  expect("I3");
}
TEST_F(CheckTest, I4LostTableEntry) {
  rig_.tree().arena().segment(second_).hashes()[0].fetch_add(1);
  expect("I4");
}
TEST_F(CheckTest, I4BlocksMiscounted) {
  rig_.tree().control().live_blocks.fetch_add(1);
  expect("I4");
}
TEST_F(CheckTest, I4LinesOfNoPowerOfTwoThatARepairRoundsUp) {
  rig_.tree().control().table.line_mask = 10;
  expect("I4");
  rig_.tree().repair();
  EXPECT_SOUND(rig_);
  for (std::uint64_t seed = 10; seed < 150; ++seed) rig_.put(make_path(seed, 1));
  EXPECT_GT(rig_.tree().table().lines_in_use(), 16u);
  EXPECT_SOUND(rig_);
}
TEST_F(CheckTest, I5BranchCountWrong) {
  rig_.tree().arena().segment(first_).branches()[3] = 1;
  expect("I5");
}
TEST_F(CheckTest, I5ChildCountWrong) {
  header(first_)->child_count.fetch_add(1);
  expect("I5");
}
TEST_F(CheckTest, I6NotQueued) {
  header(last_)->in_list = 0;
  expect("I6");
}
TEST_F(CheckTest, I6ListTooShort) {
  rig_.tree().control().eviction.head = 0;
  expect("I6");
}
TEST_F(CheckTest, I6ListThatLeavesTheArena) {
  rig_.tree().control().eviction.head = 0xfffffff0u;
  expect("I6");
}
TEST_F(CheckTest, I6ListThatGoesInCircles) {
  header(last_)->lru_next = last_;
  expect("I6");
}
TEST_F(CheckTest, I7ZombieCountWrong) {
  rig_.tree().control().zombies = 3;
  expect("I7");
}
TEST_F(CheckTest, I7ZombieListThatLeavesTheArena) {
  rig_.tree().control().zombies = 1;
  rig_.tree().control().zombie_head = 0xfffffff0u;
  expect("I7");
}
TEST_F(CheckTest, I7SegmentOfAnotherClassThatARepairReadsAnew) {
  const std::uint64_t version = head_version(header(second_)->head);
  header(second_)->size_class = 228;
  expect("I7");
  rig_.tree().repair();
  EXPECT_SOUND(rig_);
  EXPECT_EQ(rig_.hit(path_), 40u);
  EXPECT_GT(head_version(header(second_)->head), version);  // who has read it read other slots
}
TEST_F(CheckTest, I7PageOfNoClassThatARepairFrees) {
  rig_.tree().arena().page(last_ / kPageUnits).size_class = 4;
  expect("I7");
  rig_.tree().repair();
  EXPECT_SOUND(rig_);
  rig_.put(path_);
  EXPECT_SOUND(rig_);
}
TEST_F(CheckTest, I7LostPage) {
  rig_.tree().control().arena.free_pages = 0;
  expect("I7");
}
TEST_F(CheckTest, I7PageListsThatLeaveTheTable) {
  rig_.tree().control().arena.free_pages = 0xfffffff0u;
  rig_.tree().control().arena.open_pages[1] = 0xfffffff0u;
  expect("I7");
}
TEST_F(CheckTest, I7FreeSegmentListThatLeavesTheArena) {
  rig_.tree().arena().page(last_ / kPageUnits).free_head = 0xfffffff0u;
  expect("I7");
}
TEST_F(CheckTest, I8SlotOfAnUnregisteredClient) {
  full().restore_owner(held_, client_owner(5));
  expect("I8");
}
TEST_F(CheckTest, I8SlotOfAClientBeyondTheTable) {
  full().restore_owner(held_, client_owner(0x1000000));
  expect("I8");
}
TEST_F(CheckTest, I8PinOfAnUnregisteredClient) {
  rig_.pin(rig_.find(path_), 0);
  rig_.tree().clients().entry(1).state = 0;
  expect("I8");
}
TEST_F(CheckTest, I10OpenTransaction) {
  rig_.tree().log().store(rig_.tree().control().clock, 5);
  expect("I10");
  rig_.tree().repair();  // the lock was free: nobody left it open
  EXPECT_SOUND(rig_);
}
TEST_F(CheckTest, I10OddSequence) {
  rig_.tree().control().table.sequence = 7;
  expect("I10");
}
TEST_F(CheckTest, I10Intent) {
  rig_.tree().control().intent = kIntentRebuild;
  expect("I10");
}
TEST_F(CheckTest, I11SideOfAnother) {
  header(first_)->side = header(last_)->side.load();
  expect("I11");
}
TEST_F(CheckTest, I11SideOutOfRange) {
  header(first_)->side = 0xfffffff0u;
  expect("I11");
}
TEST_F(CheckTest, I11LeavingAuxSlotThatARepairBringsBack) {
  std::atomic<std::uint64_t>& word = *last_aux_word();
  word = AuxWord::leaving(word);
  expect("I11");
  EXPECT_EQ(rig_.hit(path_, kMaskSwa), 0u);
  rig_.tree().repair();
  EXPECT_SOUND(rig_);
  EXPECT_EQ(rig_.hit(path_, kMaskSwa), 40u);
}
TEST_F(CheckTest, I11SideListThatLeavesTheBlocks) {
  rig_.tree().control().sides.free_head = 0xfffffff0u;
  rig_.tree().control().sides.lists[0].head = 0xfffffff0u;
  expect("I11");
}

}  // namespace
}  // namespace radixshmem
