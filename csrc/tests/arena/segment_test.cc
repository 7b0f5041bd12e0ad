// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "arena/segment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace radixshmem {
namespace {

class SegmentTest : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  SegmentTest() {
    const ClassTable table = ClassTable::for_segment_blocks(64);
    std::uint32_t c = 1;
    while (table.capacity[c] != GetParam()) ++c;
    bytes_ = table.units[c] * kUnitBytes;
    std::memset(memory_.data() + bytes_, 0x5a, memory_.size() - bytes_);
  }
  [[nodiscard]] Segment segment() {
    return {reinterpret_cast<SegmentHeader*>(memory_.data()), GetParam()};
  }
  // Whether nothing was written behind the units of the class.
  [[nodiscard]] bool intact() const {
    for (std::size_t i = bytes_; i < memory_.size(); ++i) {
      if (memory_[i] != std::byte{0x5a}) return false;
    }
    return true;
  }

  alignas(64) std::array<std::byte, 2048> memory_{};
  std::size_t bytes_ = 0;
};

TEST_P(SegmentTest, RunsAreWrittenAndReadAtAnyEntryAndLength) {
  const Segment s = segment();
  const std::uint32_t most = std::min(s.capacity(), 9u);
  for (std::uint32_t first = 0; first < most; ++first) {
    for (std::uint32_t n = 0; first + n <= most; ++n) {
      for (std::uint32_t i = 0; i < s.capacity(); ++i) s.set_slot(i, 7000 + i);
      std::vector<BlockHash> hashes(n);
      std::vector<SlotId> slots(n);
      for (std::uint32_t i = 0; i < n; ++i) {
        hashes[i] = 100 * first + i;
        slots[i] = 0xfffffff0u - i;
      }
      s.set_hashes(first, hashes);
      s.set_slots(first, slots);
      for (std::uint32_t i = 0; i < n; ++i) EXPECT_EQ(s.hash(first + i), hashes[i]);
      std::vector<std::int32_t> read(n);
      s.read_slots(first, read);
      const auto ids = slot_ids(read);
      EXPECT_EQ(std::vector<SlotId>(ids.begin(), ids.end()), slots);
      for (std::uint32_t i = 0; i < s.capacity(); ++i) {
        const bool written = i >= first && i < first + n;
        EXPECT_EQ(s.slot(i), written ? slots[i - first] : 7000 + i)
            << first << ' ' << n << ' ' << i;
      }
    }
  }
  EXPECT_TRUE(intact());
}

TEST_P(SegmentTest, EntriesDoNotDisturbEachOtherNorWhatFollows) {
  const Segment s = segment();
  for (std::uint32_t i = 0; i < s.capacity(); ++i) {
    s.hashes()[i] = 1000 + i;
    s.set_slot(i, 0xfffffff0u - i);
  }
  if (s.capacity() > 1) {
    for (std::uint32_t i = 0; i < s.capacity(); ++i) {
      s.branches()[i] = static_cast<std::uint16_t>(65535 - i);
    }
  }
  for (std::uint32_t i = 0; i < s.capacity(); ++i) {
    EXPECT_EQ(s.hash(i), 1000 + i);
    EXPECT_EQ(s.slot(i), 0xfffffff0u - i);
    if (s.capacity() > 1) {
      EXPECT_EQ(s.branch(i), 65535 - i);
    }
  }
  EXPECT_TRUE(intact());
  s.clear_branches();
  EXPECT_TRUE(intact());
  EXPECT_EQ(s.hash(0), 1000u);
  EXPECT_EQ(s.slot(s.capacity() - 1), 0xfffffff0u - (s.capacity() - 1));
}

TEST_P(SegmentTest, ReplacingASlotKeepsTheOtherHalfOfItsPair) {
  const Segment s = segment();
  for (std::uint32_t i = 0; i < s.capacity(); ++i) s.set_slot(i, i);
  const std::uint32_t changed = s.capacity() / 2;
  s.set_slot(changed, 77);
  for (std::uint32_t i = 0; i < s.capacity(); ++i) EXPECT_EQ(s.slot(i), i == changed ? 77u : i);
}

TEST_P(SegmentTest, TheFloorIsJustBehindTheLastEntryWithChildren) {
  const Segment s = segment();
  EXPECT_EQ(s.floor(), 0u);
  s->child_count = 1;
  if (s.capacity() == 1) {
    EXPECT_EQ(s.floor(), 1u);
  } else {
    s.branches()[3] = 1;
    EXPECT_EQ(s.floor(), 4u);
    s.branches()[s.capacity() - 1] = 1;
    EXPECT_EQ(s.floor(), s.capacity());
  }
  s.clear_branches();
  EXPECT_EQ(s.floor(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Classes, SegmentTest, ::testing::Values(1u, 8u, 64u));

}  // namespace
}  // namespace radixshmem
