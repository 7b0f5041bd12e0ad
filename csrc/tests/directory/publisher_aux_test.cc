// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include <gtest/gtest.h>

#include "tests/directory/publisher_rig.h"

namespace radixshmem {
namespace {

constexpr std::uint32_t kSwa = GranuleAux::kSwa;
constexpr std::uint32_t kMamba = GranuleAux::kMamba;

// Windows of 6 blocks, granules of 4, segments of 16.
class PublisherAuxTest : public ::testing::Test, public PublisherRig {
 protected:
  PublisherAuxTest() : PublisherRig(grid_plan(400, 100, 20)) {
    publisher.set_maps({map_of(0)}, 0, now);
    collect();
  }
};

TEST_F(PublisherAuxTest, TheGranuleInWhichAWindowEndsIsMarked) {
  const Path path = make_path(1, 30);
  rig.put(path);
  collect();
  EXPECT_EQ(aux(path, 16), 0u);
  rig.put_aux(Component::kSwa, first_of(path, 19), 6);  // blocks 13 to 18
  collect();
  EXPECT_EQ(aux(path, 16), kSwa);
  for (const Position p : {0u, 4u, 8u, 12u, 20u}) EXPECT_EQ(aux(path, p), 0u) << p;
}

TEST_F(PublisherAuxTest, AWindowOfAShortPathBeginsAtTheRoot) {
  const Path path = make_path(1, 3);
  rig.put(path);
  rig.put_aux(Component::kSwa, path, 3);
  flush();
  EXPECT_EQ(aux(path, 0), kSwa);
}

TEST_F(PublisherAuxTest, ACheckpointMarksItsGranule) {
  const Path path = make_path(1, 16);
  rig.put(path);
  rig.put_aux(Component::kMamba, first_of(path, 10), 1);
  collect();
  EXPECT_EQ(aux(path, 8), kMamba);
  EXPECT_EQ(aux(path, 4), 0u);
  rig.put_aux(Component::kSwa, first_of(path, 12), 6);
  collect();
  EXPECT_EQ(aux(path, 8), kSwa | kMamba);
}

TEST_F(PublisherAuxTest, AnIncompleteWindowIsNotMarkedUntilItsFrontComes) {
  const Path path = make_path(1, 30);
  rig.put(path);
  rig.put_aux(Component::kSwa, first_of(path, 20), 4);  // 16 to 19: 14 and 15 are lacking
  collect();
  EXPECT_EQ(aux(path, 16), 0u);
  now += 60'000;
  collect();
  rig.put_aux(Component::kSwa, first_of(path, 16), 2);  // another segment, another time
  collect();
  EXPECT_EQ(aux(path, 16), kSwa);
}

TEST_F(PublisherAuxTest, AWindowInABranchMarksTheKeyOfTheSharedBlock) {
  const Path path = make_path(1, 16);
  rig.put(path);
  const Path branch = branch_of(path, 6, 2, 1);  // block 6, in granule 4 of both
  rig.put(branch);
  flush();
  rig.put_aux(Component::kSwa, branch, 6);
  collect();
  EXPECT_EQ(aux(path, 4), kSwa);
}

TEST_F(PublisherAuxTest, WhatIsEvictedIsNotMarkedAnyMore) {
  const Path path = make_path(1, 16);
  rig.put(path);
  rig.put_aux(Component::kSwa, first_of(path, 12), 6);
  rig.put_aux(Component::kMamba, first_of(path, 12), 1);
  collect();
  EXPECT_EQ(aux(path, 8), kSwa | kMamba);
  (void)rig.tree().evict_aux(Component::kSwa, 1);
  collect();
  EXPECT_EQ(aux(path, 8), kMamba) << "one lost block is enough";
  (void)rig.tree().evict_aux(Component::kMamba, 1);
  collect();
  EXPECT_EQ(aux(path, 8), 0u);
}

TEST_F(PublisherAuxTest, AKeyThatWentAndCameBackHasNoMarksFromBefore) {
  const Path path = make_path(1, 8);
  rig.put(path);
  rig.put_aux(Component::kSwa, path, 6);
  flush();
  EXPECT_EQ(aux(path, 4), kSwa);
  (void)rig.tree().evict(8);
  rig.put(path);
  flush();  // both in one batch
  EXPECT_EQ(aux(path, 4), 0u);
}

TEST_F(PublisherAuxTest, ARepublicationTellsTheMarksAgain) {
  const Path path = make_path(1, 30);
  rig.put(path);
  rig.put_aux(Component::kSwa, first_of(path, 19), 6);
  const Path branch = branch_of(path, 6, 2, 1);
  rig.put(branch);
  rig.put_aux(Component::kMamba, branch, 1);
  flush();
  keeper(0)->drop_rank(kWho.rank);
  publisher.republish_all(0, now);
  collect();
  flush();
  EXPECT_EQ(aux(path, 16), kSwa);
  EXPECT_EQ(aux(path, 4), kMamba) << "of a block in the branch";
  EXPECT_EQ(aux(path, 8), 0u);
}

TEST_F(PublisherAuxTest, AWindowSeenHalfByARepublicationIsStillCompletedLater) {
  const Path path = make_path(1, 30);
  rig.put(path);
  rig.put_aux(Component::kSwa, first_of(path, 20), 4);
  flush();
  rig.tree().repair();
  collect();
  EXPECT_EQ(aux(path, 16), 0u);
  rig.put_aux(Component::kSwa, first_of(path, 16), 2);
  collect();
  EXPECT_EQ(aux(path, 16), kSwa);
}

}  // namespace
}  // namespace radixshmem
