// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "layout/index_plan.h"

#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <set>
#include <string>

#include "layout/words.h"
#include "tests/layout/test_region.h"

namespace radixshmem {
namespace {

TEST(ClassTableTest, SegmentsOfEveryClassFitTheirUnitsAndPages) {
  for (const std::uint32_t s : {16u, 32u, 64u}) {
    const ClassTable table = ClassTable::for_segment_blocks(s);
    EXPECT_EQ(table.capacity[0], 0u);
    EXPECT_EQ(table.capacity[1], 1u);
    EXPECT_EQ(table.units[1], 1u) << "a single-block path costs one 64-byte line";
    EXPECT_EQ(table.capacity[3], s);
    for (std::uint32_t c = 2; c < kSizeClasses; ++c) {
      EXPECT_GE(table.units[c] * kUnitBytes, kSegmentHeaderBytes + table.capacity[c] * 14);
      EXPECT_LE(table.per_page[c] * table.units[c], kPageUnits);
      EXPECT_GT((table.per_page[c] + 1) * table.units[c], kPageUnits);
    }
  }
}

TEST(IndexLayoutTest, AreasFollowEachOtherWithoutOverlap) {
  const IndexLayout layout = layout_of(small_plan(1000, 100, 10));
  std::uint64_t end = kHeaderBytes;
  std::set<AreaKind> kinds;
  for (const Area& area : layout.areas) {
    EXPECT_EQ(area.offset, end) << static_cast<std::uint32_t>(area.kind);
    EXPECT_EQ(area.offset % 4096, 0u);
    end = area.offset + area.bytes;
    kinds.insert(area.kind);
  }
  EXPECT_EQ(kinds.size(), layout.areas.size());
  EXPECT_LE(end, layout.region_bytes);
  EXPECT_EQ(layout.region_bytes % (2u << 20), 0u);
}

TEST(IndexLayoutTest, WhatPeersReadIsOneRangeBeforeWhatTheyMayNot) {
  const IndexLayout layout = layout_of(small_plan(1000, 100, 10));
  for (const AreaKind kind : {AreaKind::kPeerTable, AreaKind::kDirectory, AreaKind::kArena,
                              AreaKind::kSideBlocks, AreaKind::kTable}) {
    const Area& area = layout.area(kind);
    EXPECT_LE(area.offset + area.bytes, layout.peer_readable_bytes);
  }
  for (const AreaKind kind : {AreaKind::kControl, AreaKind::kUndoLog, AreaKind::kClients,
                              AreaKind::kPins, AreaKind::kRing, AreaKind::kOwnersFull}) {
    EXPECT_GE(layout.area(kind).offset, layout.peer_readable_bytes);
  }
}

TEST(IndexLayoutTest, SegmentSizeFollowsTheBlockSizeUnlessGiven) {
  for (const auto& [tokens, expected] :
       {std::pair{1u, 64u}, {16u, 64u}, {255u, 64u}, {256u, 32u}, {511u, 32u}, {512u, 16u}}) {
    IndexPlan plan = small_plan(100);
    plan.block_size = tokens;
    plan.segment_blocks = 0;
    EXPECT_EQ(layout_of(plan).classes.segment_blocks, expected) << tokens;
    plan.segment_blocks = 16;
    EXPECT_EQ(layout_of(plan).classes.segment_blocks, 16u);
  }
}

TEST(IndexLayoutTest, ThereIsRoomForASegmentAndATableEntryPerSlot) {
  for (const std::uint32_t full : {1u, 2u, 63u, 64u, 1000u, 100000u, 3000000u}) {
    const IndexLayout layout = layout_of(small_plan(full));
    EXPECT_GE((layout.pages - 1) * layout.classes.per_page[1], full);
    EXPECT_GE(std::uint64_t{layout.table_lines_max} * 8, full);
    EXPECT_TRUE(std::has_single_bit(layout.table_lines_max));
    EXPECT_TRUE(std::has_single_bit(layout.table_lines_initial));
    EXPECT_LE(layout.table_lines_initial, layout.table_lines_max);
  }
}

TEST(IndexLayoutTest, SideBlocksExistOnlyWithAuxPools) {
  EXPECT_EQ(layout_of(small_plan(1000)).side_blocks, 0u);
  const IndexLayout swa = layout_of(small_plan(1000, 100));
  const IndexLayout both = layout_of(small_plan(1000, 100, 10));
  EXPECT_GT(swa.side_blocks, 1u);
  EXPECT_EQ(both.side_bytes - kSideHeaderBytes, 2 * (swa.side_bytes - kSideHeaderBytes));
}

TEST(IndexLayoutTest, TheGridDividesTheSegment) {
  EXPECT_EQ(key_grid(16, 64), 16u);
  EXPECT_EQ(key_grid(1, 64), 64u);
  EXPECT_EQ(key_grid(64, 64), 4u);
  EXPECT_EQ(key_grid(100, 64), 2u);
  EXPECT_EQ(key_grid(256, 32), 1u);
  EXPECT_EQ(key_grid(4096, 16), 1u);
}

TEST(IndexLayoutTest, TheDirectoryFollowsTheSlotsUnlessGiven) {
  const auto lines = [](std::uint32_t full, std::uint64_t bytes, std::uint32_t block_size = 16) {
    IndexPlan plan = small_plan(full);
    plan.block_size = block_size;
    plan.directory_bytes = bytes;
    const IndexLayout layout = layout_of(plan);
    EXPECT_EQ(layout.area(AreaKind::kDirectory).bytes, std::uint64_t{layout.directory_lines} * 64);
    return layout.directory_lines;
  };
  EXPECT_EQ(lines(1, 0), 1024u) << "64 KiB";
  EXPECT_EQ(lines(2'048'000, 0), 64'000u) << "2 bytes per slot";
  EXPECT_EQ(lines(2'048'000, 0, 64), 256'000u) << "8: a key for each 4 blocks";
  EXPECT_EQ(lines(2'048'000, 0, 1024), 1'024'000u) << "32: every block is a key";
  EXPECT_EQ(lines(1'000'000, 4096), 64u);
  EXPECT_EQ(lines(1, 5000), 128u) << "whole pages";
}

TEST(IndexLayoutTest, LargePlansStayInRange) {
  IndexPlan plan = small_plan(0x3fffffef);
  plan.segment_blocks = 64;
  const IndexLayout layout = layout_of(plan);
  EXPECT_LE(std::uint64_t{layout.pages} * kPageUnits, 0xffffffffu);
  EXPECT_GT(layout.region_bytes, std::uint64_t{0x3fffffef} * 96);
}

TEST(IndexLayoutTest, RefusesImpossiblePlansNamingFieldAndValue) {
  struct Case {
    const char* field;
    std::string value;
    std::function<void(IndexPlan&)> spoil;
  };
  const Case cases[] = {
      {"block_size", "0", [](IndexPlan& p) { p.block_size = 0; }},
      {"segment_blocks", "48", [](IndexPlan& p) { p.segment_blocks = 48; }},
      {"segment_blocks", "128", [](IndexPlan& p) { p.segment_blocks = 128; }},
      {"full_slots", "0", [](IndexPlan& p) { p.slots[0] = 0; }},
      {"slots", "1073741824", [](IndexPlan& p) { p.slots[2] = kMaxPoolSlots + 1; }},
      {"swa_window_blocks", "0", [](IndexPlan& p) { p.swa_window_blocks = 0; }},
      {"max_clients", "0", [](IndexPlan& p) { p.max_clients = 0; }},
      {"max_clients", "65537", [](IndexPlan& p) { p.max_clients = 65537; }},
      {"max_pins", "15", [](IndexPlan& p) { p.max_pins = 15; }},
      {"max_pins", "1048577", [](IndexPlan& p) { p.max_pins = (1u << 20) + 1; }},
      {"ring_entries", "1023", [](IndexPlan& p) { p.ring_entries = 1023; }},
      {"ring_entries", "1536", [](IndexPlan& p) { p.ring_entries = 1536; }},
      {"ring_entries", "512", [](IndexPlan& p) { p.ring_entries = 512; }},
      {"lock_timeout_ms", "49", [](IndexPlan& p) { p.lock_timeout_ms = 49; }},
      {"directory_bytes", "4095", [](IndexPlan& p) { p.directory_bytes = 4095; }},
      {"directory_bytes", "137438953473",
       [](IndexPlan& p) { p.directory_bytes = (std::uint64_t{128} << 30) + 1; }},
      {"identity", "1048577", [](IndexPlan& p) { p.identity.assign(kMaxIdentityBytes + 1, 'x'); }},
  };
  for (const Case& c : cases) {
    IndexPlan plan = small_plan(100, 10);
    ASSERT_TRUE(IndexLayout::from_plan(plan).ok());
    c.spoil(plan);
    const auto layout = IndexLayout::from_plan(plan);
    ASSERT_FALSE(layout.ok()) << c.field << " = " << c.value;
    EXPECT_EQ(layout.error().code, ErrorCode::INVALID_ARGUMENT);
    EXPECT_NE(layout.error().message.find(std::string(c.field) + " = " + c.value),
              std::string::npos)
        << layout.error().message;
  }
}

}  // namespace
}  // namespace radixshmem
