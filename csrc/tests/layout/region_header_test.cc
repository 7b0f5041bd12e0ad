// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "layout/region_header.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/layout/test_region.h"

namespace radixshmem {
namespace {

class RegionHeaderTest : public ::testing::Test {
 protected:
  RegionHeaderTest()
      : plan_(small_plan(200, 20, 3)), layout_(layout_of(plan_)), memory_(layout_.region_bytes) {
    write_header(memory_.base(), plan_, layout_, 77);
  }
  [[nodiscard]] RegionHeader& header() { return *reinterpret_cast<RegionHeader*>(memory_.base()); }
  [[nodiscard]] Error error(std::uint64_t bytes) const {
    const auto view = read_header(memory_.span().first(bytes), "/name");
    return view.ok() ? Error{ErrorCode::OK, ""} : view.error();
  }
  [[nodiscard]] Error error() const { return error(memory_.bytes()); }

  IndexPlan plan_;
  IndexLayout layout_;
  GuardedMemory memory_;
};

TEST_F(RegionHeaderTest, APublishedHeaderGivesBackItsPlan) {
  publish_header(memory_.base());
  const auto view = read_header(memory_.span(), "/name");
  ASSERT_TRUE(view.ok()) << view.error().message;
  const IndexPlan& plan = view.value().plan;
  EXPECT_EQ(plan.identity, "test");
  EXPECT_EQ(plan.slots, plan_.slots);
  EXPECT_EQ(plan.block_size, plan_.block_size);
  EXPECT_EQ(plan.swa_window_blocks, plan_.swa_window_blocks);
  EXPECT_EQ(plan.max_clients, plan_.max_clients);
  EXPECT_EQ(plan.max_pins, plan_.max_pins);
  EXPECT_EQ(plan.ring_entries, plan_.ring_entries);
  EXPECT_EQ(plan.lock_timeout_ms, plan_.lock_timeout_ms);
  EXPECT_EQ(view.value().layout.directory_lines, layout_.directory_lines);
  EXPECT_EQ(view.value().layout.region_bytes, layout_.region_bytes);
  EXPECT_EQ(header().incarnation.load(), 77u);
  EXPECT_EQ(header().state.load(), static_cast<std::uint32_t>(RegionState::kReady));
}

TEST_F(RegionHeaderTest, ThereIsNothingToReadBeforeThePublication) {
  EXPECT_EQ(error().code, ErrorCode::NOT_READY);
}

TEST_F(RegionHeaderTest, GarbageIsCorruptAndTheNameIsTold) {
  std::memset(memory_.base(), 0x5a, kHeaderBytes);
  EXPECT_EQ(error().code, ErrorCode::CORRUPT);
  EXPECT_NE(error().message.find("/name"), std::string::npos);
  EXPECT_NE(error().message.find("0x5a5a5a5a5a5a5a5a"), std::string::npos) << error().message;
}

TEST_F(RegionHeaderTest, AFileSmallerThanAHeaderIsCorrupt) {
  publish_header(memory_.base());
  EXPECT_EQ(error(0).code, ErrorCode::CORRUPT);
  EXPECT_EQ(error(kHeaderBytes - 1).code, ErrorCode::CORRUPT);
}

TEST_F(RegionHeaderTest, ATruncatedFileIsCorruptAndBothSizesAreTold) {
  publish_header(memory_.base());
  const Error cut = error(layout_.region_bytes - 4096);
  EXPECT_EQ(cut.code, ErrorCode::CORRUPT);
  EXPECT_NE(cut.message.find(std::to_string(layout_.region_bytes)), std::string::npos);
  EXPECT_NE(cut.message.find(std::to_string(layout_.region_bytes - 4096)), std::string::npos);
}

TEST_F(RegionHeaderTest, AnotherLayoutVersionIsAMismatchAndBothSidesAreTold) {
  publish_header(memory_.base());
  header().layout_version = 0xabcdef;
  EXPECT_EQ(error().code, ErrorCode::MISMATCH);
  EXPECT_NE(error().message.find("0x0000000000abcdef"), std::string::npos) << error().message;
  EXPECT_NE(error().message.find("this process has 0x"), std::string::npos);
}

TEST_F(RegionHeaderTest, EveryLieOfTheHeaderIsFound) {
  const std::vector<std::pair<const char*, std::function<void(RegionHeader&)>>> lies = {
      {"region_bytes", [](RegionHeader& h) { h.region_bytes += 4096; }},
      {"identity_bytes", [](RegionHeader& h) { h.identity_bytes = kMaxIdentityBytes + 1; }},
      {"identity_bytes huge", [](RegionHeader& h) { h.identity_bytes = ~std::uint64_t{0}; }},
      {"block_size", [](RegionHeader& h) { h.block_size = 0; }},
      {"segment_blocks", [](RegionHeader& h) { h.segment_blocks = 7; }},
      {"full slots", [](RegionHeader& h) { h.slots[0] = 0; }},
      {"more slots", [](RegionHeader& h) { h.slots[0] = 100'000'000; }},
      {"window", [](RegionHeader& h) { h.swa_window_blocks = 0; }},
      {"clients", [](RegionHeader& h) { h.max_clients = 0xffffffffu; }},
      {"pins", [](RegionHeader& h) { h.max_pins = 0; }},
      {"ring", [](RegionHeader& h) { h.ring_entries = 3; }},
      {"directory", [](RegionHeader& h) { h.directory_lines += 64; }},
      {"directory huge", [](RegionHeader& h) { h.directory_lines = 0xffffffffu; }},
      {"area count", [](RegionHeader& h) { h.area_count = 0xffffffffu; }},
      {"fewer areas", [](RegionHeader& h) { h.area_count -= 1; }},
      {"area kind", [](RegionHeader& h) { h.areas[2].kind = 99; }},
      {"area version", [](RegionHeader& h) { h.areas[2].version = 2; }},
      {"area offset", [](RegionHeader& h) { h.areas[3].offset = ~std::uint64_t{0} - 4095; }},
      {"area bytes", [](RegionHeader& h) { h.areas[16].bytes = ~std::uint64_t{0}; }},
  };
  for (const auto& [what, lie] : lies) {
    std::memset(memory_.base(), 0, kHeaderBytes);
    write_header(memory_.base(), plan_, layout_, 1);
    publish_header(memory_.base());
    ASSERT_EQ(error().code, ErrorCode::OK) << error().message;
    lie(header());
    EXPECT_EQ(error().code, ErrorCode::CORRUPT) << what;
  }
}

}  // namespace
}  // namespace radixshmem
