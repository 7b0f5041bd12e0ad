// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/directory_words.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "directory/holders.h"

namespace radixshmem {
namespace {

TEST(DirectoryWordsTest, AnEntryComesBackFromItsWords) {
  const DirectoryEntry entry{
      kMaxPublishedSegment,         3, 0xffff, 0xabcd, {kMaxPublishedSegment, 3},
      {kMaxPublishedSegment - 1, 2}};
  const auto back = DirectoryEntry::unpack(entry.word0(), entry.word1());
  EXPECT_EQ(back.tag, entry.tag);
  EXPECT_EQ(back.aux, 3u);
  EXPECT_EQ(back.rank, 0xffff);
  EXPECT_EQ(back.incarnation, 0xabcd);
  EXPECT_EQ(back.segment.id, kMaxPublishedSegment);
  EXPECT_EQ(back.segment.size_class, 3u);
  EXPECT_EQ(back.parent.id, kMaxPublishedSegment - 1);
  EXPECT_EQ(back.parent.size_class, 2u);
}

TEST(DirectoryWordsTest, PlacesDoNotChange) {
  // Nodes of one cluster agree on these; a change is another protocol version.
  const KeyPlace place = place_of(0x0123456789abcdef, 42);
  EXPECT_EQ(place.tag, 0x1157dbadu);
  EXPECT_EQ(place.shard, 18309);
  EXPECT_EQ(place.line(0, 1000), 562u);
  EXPECT_EQ(place.line(1, 1000), 606u);
}

TEST(DirectoryWordsTest, KeysSpreadOverShardsAndLines) {
  constexpr std::uint32_t kLines = 37;  // not a power of two
  std::vector<int> of_line(kLines);
  std::set<std::uint16_t> shards;
  for (std::uint64_t key = 0; key < 20'000; ++key) {
    const KeyPlace place = place_of(key, 7);
    ASSERT_NE(place.tag, 0u);
    shards.insert(place.shard);
    for (const std::uint32_t which : {0u, 1u}) {
      ASSERT_LT(place.line(which, kLines), kLines);
      ++of_line[place.line(which, kLines)];
    }
  }
  EXPECT_GT(shards.size(), 16'000u);  // 17,200 expected of 65,536
  for (const int n : of_line) EXPECT_NEAR(n, 40'000 / 37, 200);
  EXPECT_NE(place_of(1, 7).shard, place_of(1, 8).shard) << "the digest is mixed in";
}

TEST(HoldersTest, GivesTheEntriesOfATagOnce) {
  const DirectoryEntry a{5, 1, 3, 30, {64, 1}, {}};
  const DirectoryEntry other_tag{6, 0, 4, 40, {65, 1}, {}};
  const DirectoryEntry torn{5, 0, 7, 70, {0, 0}, {}};
  const DirectoryEntry later_life{5, 0, 3, 31, {66, 2}, {}};
  std::array<DirectoryLine, 2> lines{};
  const auto put = [&](std::size_t line, std::size_t at, const DirectoryEntry& e) {
    lines[line].words[2 * at] = e.word0();
    lines[line].words[2 * at + 1] = e.word1();
  };
  put(0, 0, a);
  put(0, 1, other_tag);
  put(0, 3, torn);
  put(1, 2, a);
  put(1, 3, later_life);
  const Holders found = holders_in(lines, 5);
  ASSERT_EQ(found.count, 2u);
  EXPECT_EQ(found.entry[0].segment.id, 64u);
  EXPECT_EQ(found.entry[0].aux, 1u);
  EXPECT_EQ(found.entry[1].incarnation, 31);
  EXPECT_EQ(holders_in(lines, 9).count, 0u);
}

TEST(HoldersTest, LinesFullOfGarbageGiveAtMostEight) {
  std::array<DirectoryLine, 2> lines{};
  std::uint64_t word = 0;
  for (DirectoryLine& line : lines) {
    for (std::uint64_t& w : line.words) w = std::uint64_t{5} << 34 | ++word << 1;
  }
  EXPECT_LE(holders_in(lines, 5).count, 8u);
}

}  // namespace
}  // namespace radixshmem
