// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "sync/client_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

namespace radixshmem {
namespace {

constexpr std::uint32_t kClients = 6;
constexpr std::uint32_t kPins = 128;

class ClientTableTest : public ::testing::Test {
 protected:
  ClientTableTest()
      : entries_(kClients),
        pins_(kClients * kPins),
        table_(&root_, entries_.data(), pins_.data(), kClients, kPins) {}
  // Every pin that a scanner sees, as (client, segment, depth).
  std::set<std::tuple<ClientId, SegmentId, std::uint32_t>> scan() const {
    std::set<std::tuple<ClientId, SegmentId, std::uint32_t>> seen;
    table_.scan_pins([&](ClientId id, PinWord pin) { seen.insert({id, pin.segment, pin.depth}); });
    return seen;
  }
  void set_pin(ClientId id, std::uint32_t index, SegmentId segment) {
    table_.pin(id, index).store(PinWord{segment, 1, kMaskFull}.pack());
  }

  ClientRoot root_{};
  std::vector<ClientEntry> entries_;
  std::vector<std::atomic<std::uint64_t>> pins_;
  ClientTable table_;
};

TEST_F(ClientTableTest, AClaimIsVisibleAndCountsGenerations) {
  EXPECT_EQ(table_.ids_used(), 0u);
  table_.claim(2, 77, 4711);
  EXPECT_EQ(table_.ids_used(), 3u);
  EXPECT_EQ(table_.state(2), ClientState::kLive);
  EXPECT_EQ(table_.state(1), ClientState::kFree);
  EXPECT_EQ(table_.entry(2).group.load(), 77u);
  EXPECT_EQ(table_.entry(2).pid.load(), 4711u);
  EXPECT_EQ(table_.entry(2).generation.load(), 1u);
  table_.free_entry(2);
  EXPECT_EQ(table_.state(2), ClientState::kFree);
  table_.claim(2, 78, 4712);
  EXPECT_EQ(table_.entry(2).generation.load(), 2u);
  EXPECT_EQ(table_.ids_used(), 3u);
}

TEST_F(ClientTableTest, CountersSurviveTheirClient) {
  table_.claim(1, 1, 1);
  table_.claim(2, 2, 2);
  const auto queries = static_cast<std::size_t>(Counter::kQueries);
  table_.entry(1).counters[queries] = 5;
  table_.entry(2).counters[queries] = 7;
  EXPECT_EQ(table_.total(Counter::kQueries), 12u);
  table_.free_entry(1);
  EXPECT_EQ(table_.total(Counter::kQueries), 12u);
  table_.claim(1, 1, 1);
  EXPECT_EQ(table_.entry(1).counters[queries].load(), 0u);
  EXPECT_EQ(table_.total(Counter::kQueries), 12u);
  EXPECT_EQ(table_.total(Counter::kInserts), 0u);
}

TEST_F(ClientTableTest, AGroupLivesWhileAnotherMemberDoes) {
  table_.claim(1, 9, 1);
  table_.claim(2, 9, 2);
  table_.claim(3, 8, 3);
  EXPECT_TRUE(table_.group_lives(9, 1));
  EXPECT_FALSE(table_.group_lives(8, 3));
  table_.entry(2).state = static_cast<std::uint32_t>(ClientState::kDead);
  EXPECT_FALSE(table_.group_lives(9, 1)) << "a dead member does not count";
}

TEST_F(ClientTableTest, TextGroupsNeverMeetTheGroupsOfSingleClients) {
  EXPECT_NE(group_of_text_hash(0) & 0x80000000u, 0u);
  EXPECT_EQ(group_of_text_hash(0xffffffffffffffffu), 0xffffffffu);
}

TEST_F(ClientTableTest, ScannersSeePinsBelowTheMarkOfEveryClient) {
  table_.claim(0, 0, 1);
  table_.claim(3, 3, 1);
  set_pin(0, 0, 10);
  set_pin(3, 4, 30);
  EXPECT_TRUE(scan().empty()) << "no mark, no pins";
  table_.entry(0).pin_high_water = 1;
  table_.entry(3).pin_high_water = 5;
  EXPECT_EQ(scan(),
            (std::set<std::tuple<ClientId, SegmentId, std::uint32_t>>{{0, 10, 1}, {3, 30, 1}}));
}

TEST_F(ClientTableTest, AMarkBeyondTheTableReadsNoFurtherThanItsEnd) {
  table_.claim(0, 0, 1);
  table_.entry(0).pin_high_water = 0xffffffffu;
  set_pin(0, kPins - 1, 5);
  EXPECT_EQ(scan().size(), 1u);
}

TEST_F(ClientTableTest, ACountOfIdsBeyondTheTableIsNotBelieved) {
  table_.claim(0, 0, 1);
  root_.ids_used = 0xfffffff0u;
  EXPECT_EQ(table_.ids_used(), kClients);
  EXPECT_TRUE(scan().empty());
  EXPECT_EQ(table_.total(Counter::kQueries), 0u);
}

TEST_F(ClientTableTest, ClearingPinsCountsThemAndLowersTheMark) {
  table_.claim(1, 1, 1);
  set_pin(1, 0, 10);
  set_pin(1, 100, 11);  // above the mark: a client that died between mark and pin, reversed
  table_.entry(1).pin_high_water = 50;
  EXPECT_EQ(table_.clear_pins(1), 2u);
  EXPECT_EQ(table_.entry(1).pin_high_water.load(), 0u);
  EXPECT_EQ(table_.clear_pins(1), 0u);
}

class PinAllocatorTest : public ClientTableTest {
 protected:
  PinAllocatorTest() : allocator_(&table_, 1) { table_.claim(1, 1, 1); }
  std::uint32_t mark() const { return table_.entry(1).pin_high_water.load(); }
  PinAllocator allocator_;
};

TEST_F(PinAllocatorTest, TakesTheLowestEntriesAndRaisesTheMarkOverThem) {
  std::array<std::uint32_t, 3> three{};
  ASSERT_TRUE(allocator_.reserve(three));
  EXPECT_EQ(three, (std::array<std::uint32_t, 3>{0, 1, 2}));
  EXPECT_EQ(mark(), 3u);
  EXPECT_EQ(allocator_.outstanding(), 3u);
  allocator_.give_back(three);
  EXPECT_EQ(allocator_.outstanding(), 0u);
  std::array<std::uint32_t, 1> one{};
  ASSERT_TRUE(allocator_.reserve(one));
  EXPECT_LT(one[0], 3u) << "used ones are used again";
  EXPECT_EQ(mark(), 3u);
}

TEST_F(PinAllocatorTest, IsAllOrNone) {
  std::vector<std::uint32_t> most(kPins - 1);
  ASSERT_TRUE(allocator_.reserve(most));
  std::array<std::uint32_t, 2> two{};
  EXPECT_FALSE(allocator_.reserve(two));
  EXPECT_EQ(allocator_.outstanding(), kPins - 1);
  std::array<std::uint32_t, 1> one{};
  EXPECT_TRUE(allocator_.reserve(one));
  EXPECT_FALSE(allocator_.reserve(one));
  EXPECT_EQ(std::set<std::uint32_t>(most.begin(), most.end()).size(), kPins - 1);
}

TEST_F(PinAllocatorTest, LowersAHighMarkOnlyWhenNoPinIsOut) {
  std::vector<std::uint32_t> many(100);
  ASSERT_TRUE(allocator_.reserve(many));
  std::array<std::uint32_t, 1> last = {many.back()};
  allocator_.give_back(std::span(many).first(99));
  allocator_.lower_high_water();
  EXPECT_EQ(mark(), 100u);
  allocator_.give_back(last);
  allocator_.lower_high_water();
  EXPECT_EQ(mark(), 0u);
  std::vector<std::uint32_t> all(kPins);
  ASSERT_TRUE(allocator_.reserve(all));
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end())) << "lowest first again";
  EXPECT_EQ(std::set<std::uint32_t>(all.begin(), all.end()).size(), kPins);
  EXPECT_EQ(mark(), kPins);
}

TEST_F(PinAllocatorTest, ThreadsNeverShareAnEntry) {
  std::vector<std::atomic<int>> holders(kPins);
  std::atomic<int> shared{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::array<std::uint32_t, 5> mine{};
      for (int i = 0; i < 5000; ++i) {
        if (!allocator_.reserve(mine)) continue;
        for (const std::uint32_t index : mine) shared += holders[index].fetch_add(1);
        for (const std::uint32_t index : mine) holders[index].fetch_sub(1);
        allocator_.give_back(mine);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(shared, 0);
  EXPECT_EQ(allocator_.outstanding(), 0u);
}

}  // namespace
}  // namespace radixshmem
