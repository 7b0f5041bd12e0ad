// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/directory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/directory/directory_rig.h"

namespace radixshmem {
namespace {

Claim claim_of(std::uint16_t rank, std::uint16_t incarnation = 1, SegmentId segment = 1000) {
  Claim claim;
  claim.rank = rank;
  claim.incarnation = incarnation;
  claim.segment = {segment + rank, 2};
  claim.parent = {segment, 3};
  return claim;
}

TEST(DirectoryTest, APublishedKeyIsFoundWithAllItSays) {
  DirectoryRig directory(64, 8);
  directory->publish(11, {3, 1, 2, {500, 2}, {400, 3}, 0, 0});
  const Holders found = directory.find(11);
  ASSERT_EQ(found.count, 1u);
  EXPECT_EQ(found.entry[0].rank, 3);
  EXPECT_EQ(found.entry[0].incarnation, 1);
  EXPECT_EQ(found.entry[0].aux, 2u);
  EXPECT_EQ(found.entry[0].segment.id, 500u);
  EXPECT_EQ(found.entry[0].segment.size_class, 2u);
  EXPECT_EQ(found.entry[0].parent.id, 400u);
  EXPECT_EQ(found.entry[0].parent.size_class, 3u);
  EXPECT_EQ(directory.find(12).count, 0u);
}

TEST(DirectoryTest, PublishingAgainReplacesWhatTheHolderSaid) {
  DirectoryRig directory(64, 8);
  directory->publish(11, claim_of(3, 1, 100));
  directory->publish(11, claim_of(3, 1, 700));
  const Holders found = directory.find(11);
  ASSERT_EQ(found.count, 1u);
  EXPECT_EQ(found.entry[0].segment.id, 703u);
  EXPECT_EQ(directory->entries(), 1u);
}

TEST(DirectoryTest, RetractTakesOneHolderOut) {
  DirectoryRig directory(64, 8);
  directory->publish(11, claim_of(3));
  directory->publish(11, claim_of(4));
  directory->retract(11, 3, 1);
  EXPECT_EQ(directory.ranks(11), Ranks{4});
  directory->retract(11, 3, 1);  // twice is harmless
  directory->retract(77, 4, 1);  // so is a key that never was
  EXPECT_EQ(directory->counters().retracted, 1u);
  EXPECT_EQ(directory->entries(), 1u);
}

TEST(DirectoryTest, FourHoldersAreInTheLinesAndTheOthersWaitForTheirPlace) {
  DirectoryRig directory(64, 30);
  for (std::uint16_t r = 0; r < 12; ++r) directory->publish(11, claim_of(r));
  Ranks first = directory.ranks(11);
  EXPECT_EQ(first.size(), 4u);
  EXPECT_EQ(directory->waiting(), 8u);
  Ranks seen;
  for (int i = 0; i < 12; ++i) {
    const Ranks now = directory.ranks(11);
    EXPECT_EQ(now.size(), std::min<std::size_t>(4, 12 - static_cast<std::size_t>(i)));
    seen.insert(now.begin(), now.end());
    directory->retract(11, *now.begin(), 1);
  }
  EXPECT_EQ(seen.size(), 12u) << "every holder had its turn";
  EXPECT_EQ(directory->waiting(), 0u);
  EXPECT_EQ(directory->entries(), 0u);
  EXPECT_EQ(directory->counters().promoted, 8u);
}

TEST(DirectoryTest, NewHoldersOfAFullKeyComeInEverySecondTime) {
  DirectoryRig directory(4096, 30);
  int came = 0;
  for (BlockHash key = 0; key < 1000; ++key) {
    for (std::uint16_t r = 0; r < 5; ++r) directory->publish(key, claim_of(r));
    came += directory.ranks(key).contains(4) ? 1 : 0;
  }
  EXPECT_NEAR(came, 500, 80);
}

TEST(DirectoryTest, HoldersBeyondThoseThatCanWaitAreCounted) {
  DirectoryRig directory(64, 30);
  for (std::uint16_t r = 0; r < 25; ++r) directory->publish(11, claim_of(r));
  EXPECT_EQ(directory.ranks(11).size(), 4u);
  EXPECT_EQ(directory->waiting(), Directory::kMaxWaiting);
  EXPECT_EQ(directory->counters().capped, 5u);
}

TEST(DirectoryTest, AHolderThatWaitsCanBeRetractedAndPublishedAgain) {
  DirectoryRig directory(64, 8);
  for (std::uint16_t r = 0; r < 5; ++r) directory->publish(11, claim_of(r));
  std::uint16_t waits = 0;
  while (directory.ranks(11).contains(waits)) ++waits;
  directory->publish(11, claim_of(waits));
  EXPECT_EQ(directory->waiting(), 1u) << "one rank has one entry, here or there";
  waits = 0;
  while (directory.ranks(11).contains(waits)) ++waits;
  directory->retract(11, waits, 1);
  EXPECT_EQ(directory->waiting(), 0u);
  EXPECT_EQ(directory.ranks(11).size(), 4u);
}

TEST(DirectoryTest, EntriesOfAnEarlierLifeAreDeadAtOnceAndTheirPlaceIsFree) {
  DirectoryRig directory(1, 8);  // one line: both lines of every key
  for (BlockHash key = 0; key < 4; ++key) directory->publish(key, claim_of(2));
  directory->admit(2, 77);
  for (BlockHash key = 0; key < 4; ++key) EXPECT_EQ(directory.ranks(key), Ranks{});
  directory->publish(0, claim_of(2, 77));
  EXPECT_EQ(directory.ranks(0), Ranks{2});
  for (BlockHash key = 10; key < 13; ++key) directory->publish(key, claim_of(5));
  for (BlockHash key = 10; key < 13; ++key) EXPECT_EQ(directory.ranks(key), Ranks{5});
  EXPECT_EQ(directory->counters().dropped, 0u);
  EXPECT_EQ(directory->entries(), 4u);
}

TEST(DirectoryTest, ANewLifeOfAHolderDoesNotExceedTheFour) {
  DirectoryRig directory(64, 8);
  directory->publish(11, claim_of(0));
  directory->admit(0, 2);
  for (std::uint16_t r = 1; r < 5; ++r) directory->publish(11, claim_of(r));
  directory->publish(11, claim_of(0, 2));
  EXPECT_EQ(directory.ranks(11).size(), 4u);
  EXPECT_EQ(directory->waiting(), 1u);
}

TEST(DirectoryTest, ThePlaceOfADeadHolderGoesToOneThatWaits) {
  DirectoryRig directory(64, 8);
  for (std::uint16_t r = 0; r < 6; ++r) directory->publish(11, claim_of(r));
  const Ranks before = directory.ranks(11);
  directory->expel(*before.begin());
  const Ranks after = directory.ranks(11);
  EXPECT_EQ(after.size(), 4u);
  EXPECT_FALSE(after.contains(*before.begin()));
}

TEST(DirectoryTest, StrangersAndOldLivesAreRefused) {
  DirectoryRig directory(64, 4);
  directory->publish(11, claim_of(9));
  directory->publish(11, claim_of(3, 2));
  directory->publish(12, claim_of(3));
  directory->retract(12, 3, 2);
  EXPECT_EQ(directory->counters().refused, 3u);
  EXPECT_EQ(directory.ranks(11), Ranks{});
  EXPECT_EQ(directory.ranks(12), Ranks{3});
}

TEST(DirectoryTest, AFullLineGivesWayToAKeyWithFewerHolders) {
  DirectoryRig directory(1, 8);
  for (std::uint16_t r = 0; r < 3; ++r) directory->publish(11, claim_of(r));
  directory->publish(12, claim_of(0));
  directory->publish(13, claim_of(0));
  EXPECT_EQ(directory->counters().displaced, 1u);
  EXPECT_EQ(directory.ranks(11).size(), 2u);
  directory->publish(14, claim_of(0));
  EXPECT_EQ(directory->counters().displaced, 2u);
  directory->publish(15, claim_of(0));
  EXPECT_EQ(directory->counters().displaced, 2u);
  EXPECT_EQ(directory->counters().dropped, 1u) << "nobody has more than one";
  directory->publish(12, claim_of(1));
  EXPECT_EQ(directory->counters().dropped, 2u) << "a second holder displaces no first one";
  for (const BlockHash key : {11, 12, 13, 14}) EXPECT_EQ(directory.ranks(key).size(), 1u) << key;
}

TEST(DirectoryTest, DropRankLeavesNothingOfIt) {
  DirectoryRig directory(64, 8);
  for (BlockHash key = 0; key < 50; ++key) {
    directory->publish(key, claim_of(static_cast<std::uint16_t>(key % 8)));
  }
  for (std::uint16_t r = 0; r < 8; ++r) directory->publish(99, claim_of(r));
  directory->drop_rank(3);
  for (BlockHash key = 0; key < 50; ++key) EXPECT_FALSE(directory.ranks(key).contains(3)) << key;
  EXPECT_FALSE(directory.ranks(99).contains(3));
  EXPECT_EQ(directory.ranks(99).size(), 4u);
  directory->publish(3, claim_of(3));
  EXPECT_EQ(directory.ranks(3), Ranks{3}) << "it is still a member";
}

TEST(DirectoryTest, AClearedDirectoryIsEmptyAndHasAnotherDigest) {
  DirectoryRig directory(64, 8);
  for (std::uint16_t r = 0; r < 8; ++r) directory->publish(11, claim_of(r));
  directory->clear(DirectoryRig::kDigest + 1);
  EXPECT_EQ(directory->entries() + directory->waiting(), 0u);
  directory->publish(11, claim_of(1));
  EXPECT_EQ(directory->counters().refused, 1u) << "members come back by admit()";
  directory->admit(1, 1);
  directory->publish(11, claim_of(1));
  EXPECT_EQ(directory.ranks(11), Ranks{1});
}

TEST(DirectoryTest, AgreesWithAModelUnderRandomChanges) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr std::uint16_t kRanks = 12;
  constexpr std::uint32_t kKeys = 60;
  DirectoryRig directory(8192, kRanks);  // room for all: nothing is displaced or dropped
  std::map<BlockHash, Ranks> model;
  std::array<std::uint16_t, kRanks> life;
  life.fill(1);
  for (int step = 0; step < 60'000; ++step) {
    const BlockHash key = random() % kKeys;
    const auto rank = static_cast<std::uint16_t>(random() % kRanks);
    const auto what = random() % 1000;
    if (what < 560) {
      directory->publish(key, claim_of(rank, life[rank]));
      model[key].insert(rank);
    } else if (what < 985) {
      directory->retract(key, rank, life[rank]);
      model[key].erase(rank);
    } else if (what < 988) {
      directory->drop_rank(rank);
      for (auto& [k, ranks] : model) ranks.erase(rank);
    } else {
      directory->admit(rank, ++life[rank]);
      for (auto& [k, ranks] : model) ranks.erase(rank);
    }
    if (step % 64 != 0) continue;
    for (const auto& [k, ranks] : model) {
      const Ranks found = directory.ranks(k);
      ASSERT_TRUE(std::ranges::includes(ranks, found)) << k;
      ASSERT_EQ(found.size(), std::min<std::size_t>(Directory::kMaxHolders, ranks.size())) << k;
    }
  }
  EXPECT_EQ(directory->counters().dropped + directory->counters().displaced, 0u);
  EXPECT_EQ(directory->counters().capped, 0u) << "12 ranks: 4 in lines and 8 waiting";
}

}  // namespace
}  // namespace radixshmem
