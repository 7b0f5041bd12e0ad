// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "remote/segment_image.h"

#include <gtest/gtest.h>

#include <random>

#include "arena/segment.h"
#include "layout/words.h"
#include "tests/remote/cluster_rig.h"

namespace radixshmem {
namespace {

// The bytes of the segment that holds block `position` of `path`.
class SegmentImageTest : public testing::Test {
 protected:
  SegmentImageTest() : rig_(cluster_plan(1024)) {}

  std::vector<std::byte> bytes_of(const Path& path, Position position) {
    const auto found = rig_.find(path);
    for (const MatchStep& step : found.match.steps) {
      if (step.start > position || step.start + step.count <= position) continue;
      const std::uint32_t units = classes().units[rig_.tree().arena().class_of(step.segment)];
      std::vector<std::byte> bytes(std::size_t{units} * kUnitBytes);
      std::memcpy(bytes.data(), rig_.tree().arena().header(step.segment), bytes.size());
      return bytes;
    }
    return {};
  }
  [[nodiscard]] const ClassTable& classes() const { return rig_.view().layout.classes; }

  TreeRig rig_;
};

template <typename Word>
void set(std::vector<std::byte>& bytes, std::size_t offset, Word word) {
  std::memcpy(bytes.data() + offset, &word, sizeof word);
}

TEST_F(SegmentImageTest, SaysWhatTheSegmentHolds) {
  const Path path = make_path(1, 150);
  const Slots slots = rig_.put(path);
  rig_.put(branch_of(path, 100, 2, 5));
  const auto bytes = bytes_of(path, 70);
  const auto image = SegmentImage::of(bytes, classes());
  ASSERT_TRUE(image);
  EXPECT_EQ(image->start(), 64u);
  EXPECT_EQ(image->count(), 64u);
  EXPECT_EQ(image->matched(path), 64u);
  EXPECT_EQ(image->matched(first_of(path, 90)), 26u);
  EXPECT_EQ(image->matched(branch_of(path, 80, 3, 70)), 16u);
  EXPECT_EQ(image->matched(first_of(path, 64)), 0u);
  EXPECT_TRUE(image->goes_on(36));
  EXPECT_FALSE(image->goes_on(35));
  EXPECT_TRUE(image->goes_on(64));
  Slots theirs;
  EXPECT_TRUE(image->append_slots(64, theirs));
  EXPECT_TRUE(std::equal(theirs.begin(), theirs.end(), slots.begin() + 64));
}

TEST_F(SegmentImageTest, OneBlockSegmentsKnowTheirChildren) {
  const Path path = make_path(4, 1);
  rig_.put(path);
  EXPECT_FALSE(SegmentImage::of(bytes_of(path, 0), classes())->goes_on(1));
  rig_.put(branch_of(path, 1, 5, 3));
  const auto bytes = bytes_of(path, 0);
  EXPECT_EQ(bytes.size(), 64u);
  EXPECT_TRUE(SegmentImage::of(bytes, classes())->goes_on(1));
}

TEST_F(SegmentImageTest, RefusesWhatIsNoSegment) {
  const Path path = make_path(6, 128);
  rig_.put(path);
  const auto good = bytes_of(path, 64);
  ASSERT_TRUE(SegmentImage::of(good, classes()));
  EXPECT_FALSE(SegmentImage::of({}, classes()));
  EXPECT_FALSE(
      SegmentImage::of(std::span(good).first(192), classes()));  // longer than what was read

  const auto refused = [&](const std::function<void(std::vector<std::byte>&)>& damage) {
    auto bytes = good;
    damage(bytes);
    return !SegmentImage::of(bytes, classes()).has_value();
  };
  const auto with_head = [&](SegmentState state, std::uint32_t count) {
    return refused([&](auto& b) { set(b, 0, SegmentHead{5, state, count, count}.pack()); });
  };
  EXPECT_TRUE(with_head(SegmentState::kZombie, 64));
  EXPECT_TRUE(with_head(SegmentState::kFree, 64));
  EXPECT_TRUE(with_head(SegmentState::kLive, 0));
  EXPECT_TRUE(with_head(SegmentState::kLive, 65));
  EXPECT_FALSE(with_head(SegmentState::kLive, 3));
  const auto with_class = [&](std::uint8_t size_class) {
    return refused([&](auto& b) { set(b, offsetof(SegmentHeader, size_class), size_class); });
  };
  EXPECT_TRUE(with_class(0));
  EXPECT_TRUE(with_class(1));  // 64 entries do not fit
  EXPECT_TRUE(with_class(4));
  EXPECT_TRUE(with_class(255));
  EXPECT_TRUE(refused([&](auto& b) { set(b, offsetof(SegmentHeader, start), 65u); }));
  EXPECT_TRUE(refused([&](auto& b) { set(b, offsetof(SegmentHeader, parent), 0u); }));
}

TEST_F(SegmentImageTest, RefusesSlotsThatAreNone) {
  const Path path = make_path(7, 64);
  rig_.put(path);
  auto bytes = bytes_of(path, 0);
  set(bytes, kSegmentHeaderBytes + 8 * 64 + 4 * 10, 0x8000'0000u);
  const auto image = SegmentImage::of(bytes, classes());
  Slots slots{1};
  EXPECT_TRUE(image->append_slots(10, slots));
  EXPECT_FALSE(image->append_slots(11, slots));
  EXPECT_EQ(slots.size(), 11u);
}

}  // namespace
}  // namespace radixshmem
