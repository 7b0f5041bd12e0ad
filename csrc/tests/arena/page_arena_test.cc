// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "arena/page_arena.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/layout/test_region.h"

namespace radixshmem {
namespace {

constexpr std::uint32_t kPages = 5;  // page 0 is not used
constexpr std::uint64_t kPageBytes = std::uint64_t{kPageUnits} * kUnitBytes;

class PageArenaTest : public ::testing::Test {
 protected:
  // Offset 0 of the log's region must not be a word of ours: the root comes first.
  struct Shared {
    std::uint64_t nothing[8];
    ArenaRoot root;
    PageEntry pages[kPages];
    UndoLogShared log;
  };

  PageArenaTest()
      : memory_(kSharedBytes + kPages * kPageBytes),
        shared_(reinterpret_cast<Shared*>(memory_.base())),
        classes_(ClassTable::for_segment_blocks(16)),
        log_(memory_.base(), memory_.bytes(), &shared_->log),
        arena_(&shared_->root, shared_->pages, memory_.base() + kSharedBytes, kPages, classes_,
               &log_) {
    arena_.init();
  }
  SegmentId pop(std::uint32_t size_class) {
    const SegmentId id = arena_.pop(size_class);
    log_.commit(0);
    return id;
  }
  SegmentId pop_live(std::uint32_t size_class) {
    const SegmentId id = pop(size_class);
    auto& head = arena_.header(id)->head;
    head = next_head(head, SegmentState::kLive, 1, 1);
    return id;
  }
  void push(SegmentId id) {
    auto& head = arena_.header(id)->head;
    head = next_head(head, SegmentState::kFree, 0, 0);
    arena_.push(id);
    log_.commit(0);
  }
  std::string problems() const {
    std::string text;
    arena_.check_pages([&](const char* what, PageId page) {
      text += std::string(what) + " " + std::to_string(page) + "\n";
    });
    return text;
  }

  static constexpr std::uint64_t kSharedBytes = (sizeof(Shared) + 4095) / 4096 * 4096;
  GuardedMemory memory_;
  Shared* shared_;
  ClassTable classes_;
  UndoLog log_;
  PageArena arena_;
};

TEST_F(PageArenaTest, PopsAlignedFreeSegmentsOfTheWantedClass) {
  for (const std::uint32_t c : {1u, 2u, 3u}) {
    const SegmentId id = pop(c);
    EXPECT_TRUE(arena_.valid(id));
    EXPECT_GE(id, kPageUnits) << "page 0 is never used";
    EXPECT_EQ(arena_.segment(id).capacity(), classes_.capacity[c]);
    EXPECT_EQ(arena_.segment(id).head().state, SegmentState::kFree);
    EXPECT_EQ(arena_.segment(id).parent(), 0u);
    EXPECT_EQ(arena_.segment(id).children(), 0u);
  }
  EXPECT_EQ(arena_.pages_in_use(), 3u);
}

TEST_F(PageArenaTest, APageGivesAllItsSegmentsBeforeTheNextIsOpened) {
  std::set<SegmentId> ids;
  for (std::uint32_t i = 0; i < classes_.per_page[3]; ++i) ids.insert(pop_live(3));
  EXPECT_EQ(ids.size(), classes_.per_page[3]);
  EXPECT_EQ(arena_.pages_in_use(), 1u);
  EXPECT_EQ(problems(), "");
  (void)pop_live(3);
  EXPECT_EQ(arena_.pages_in_use(), 2u);
  EXPECT_EQ(problems(), "");
}

TEST_F(PageArenaTest, SegmentsOfOnePageDoNotOverlap) {
  std::set<SegmentId> units;
  for (std::uint32_t i = 0; i < classes_.per_page[2]; ++i) {
    const SegmentId id = pop_live(2);
    for (std::uint32_t u = 0; u < classes_.units[2]; ++u) {
      EXPECT_TRUE(units.insert(id + u).second);
    }
  }
}

TEST_F(PageArenaTest, EveryPageCanBeUsedAndThenPopIsRefused) {
  std::vector<SegmentId> ids;
  while (arena_.can_pop(1)) ids.push_back(pop_live(1));
  EXPECT_EQ(ids.size(), (kPages - 1) * classes_.per_page[1]);
  EXPECT_FALSE(arena_.can_pop(2));
  EXPECT_FALSE(arena_.can_pop_any());
  push(ids[700]);
  EXPECT_TRUE(arena_.can_pop(1));
  EXPECT_FALSE(arena_.can_pop(3)) << "a page in use keeps its class";
  EXPECT_EQ(pop_live(1), ids[700]);
  EXPECT_EQ(problems(), "");
}

TEST_F(PageArenaTest, AnEmptiedPageCanChangeItsClass) {
  std::vector<SegmentId> ids;
  while (arena_.can_pop(1)) ids.push_back(pop_live(1));
  const PageId page = ids[0] / kPageUnits;
  for (const SegmentId id : ids) {
    if (id / kPageUnits == page) push(id);
  }
  EXPECT_EQ(arena_.page(page).size_class.load(), 0u);
  EXPECT_FALSE(arena_.valid(ids[0])) << "ids of a free page name nothing";
  EXPECT_EQ(problems(), "");
  const SegmentId id = pop_live(3);
  EXPECT_EQ(id / kPageUnits, page);
  EXPECT_EQ(problems(), "");
}

TEST_F(PageArenaTest, ANewClassRaisesTheSequenceAndEveryVersionAboveTheOldOnes) {
  const SegmentId first = pop_live(1);
  for (int i = 0; i < 50; ++i) {  // wear one head out
    auto& head = arena_.header(first)->head;
    head = next_head(head, SegmentState::kLive, 1, 1);
  }
  const std::uint64_t worn = arena_.segment(first).head().version;
  push(first);
  const std::uint64_t sequence = arena_.sequence(std::memory_order_relaxed);
  const SegmentId second = pop(3);
  EXPECT_EQ(second / kPageUnits, first / kPageUnits);
  EXPECT_GT(arena_.sequence(std::memory_order_relaxed), sequence);
  arena_.for_each_in_page(second / kPageUnits, [&](SegmentId, Segment segment) {
    EXPECT_GT(segment.head().version, worn);
    EXPECT_EQ(segment.head().state, SegmentState::kFree);
  });
}

TEST_F(PageArenaTest, UndoneChangesLeaveNoTrace) {
  const SegmentId kept = pop_live(2);
  const std::uint32_t pages = arena_.pages_in_use();
  for (int i = 0; i < 3; ++i) (void)arena_.pop(3);
  log_.resolve(UndoLog::Outcome::kUndone);
  EXPECT_EQ(arena_.pages_in_use(), pages);
  EXPECT_EQ(problems(), "");
  auto& head = arena_.header(kept)->head;
  head = next_head(head, SegmentState::kFree, 0, 0);
  arena_.push(kept);
  log_.resolve(UndoLog::Outcome::kUndone);
  head = next_head(head, SegmentState::kLive, 1, 1);
  EXPECT_EQ(problems(), "");
  EXPECT_EQ(arena_.pages_in_use(), pages);
}

TEST_F(PageArenaTest, OnlyStartsOfSegmentsAreValid) {
  const SegmentId id = pop_live(2);
  EXPECT_FALSE(arena_.valid(0));
  EXPECT_FALSE(arena_.valid(5)) << "page 0";
  EXPECT_FALSE(arena_.valid(id + 1));
  EXPECT_TRUE(arena_.valid(id + classes_.units[2]));
  EXPECT_FALSE(
      arena_.valid(id / kPageUnits * kPageUnits + classes_.per_page[2] * classes_.units[2]))
      << "the rest of a page";
  EXPECT_FALSE(arena_.valid(arena_.units()));
  EXPECT_FALSE(arena_.valid(0xffffffffu));
}

TEST_F(PageArenaTest, RebuildFindsListsAndCountsAgain) {
  std::vector<SegmentId> ids;
  for (int i = 0; i < 200; ++i) ids.push_back(pop_live(i % 3 == 0 ? 2 : 1));
  for (std::size_t i = 0; i < ids.size(); i += 2) push(ids[i]);
  shared_->root.free_pages = 0;
  for (auto& open : shared_->root.open_pages) open = 99;
  shared_->root.pages_in_use = 77;
  for (PageEntry& page : shared_->pages) {
    page.used = 12345;
    page.free_head = 1;
    page.prev = page.next = 3;
    page.in_list = 1;
  }
  EXPECT_NE(problems(), "");
  arena_.rebuild();
  EXPECT_EQ(problems(), "");
  std::set<SegmentId> taken;
  for (std::size_t i = 1; i < ids.size(); i += 2) taken.insert(ids[i]);
  for (int i = 0; i < 300; ++i) EXPECT_TRUE(taken.insert(pop_live(2)).second);
  EXPECT_EQ(problems(), "");
}

TEST_F(PageArenaTest, RebuildFreesThePageWhoseLastSegmentWent) {
  const SegmentId id = pop_live(3);
  auto& head = arena_.header(id)->head;
  head = next_head(head, SegmentState::kFree, 0, 0);
  const std::uint64_t version = SegmentHead::unpack(head).version;
  arena_.rebuild();
  EXPECT_EQ(arena_.page(id / kPageUnits).size_class.load(), 0u);
  EXPECT_GE(arena_.page(id / kPageUnits).base_version.load(), version);
  EXPECT_EQ(problems(), "");
}

}  // namespace
}  // namespace radixshmem
