// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Random inserts, evictions, resets and membership changes on four nodes. Whenever they come to
// rest, the directory that is read has every key of every living tree.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/directory/cluster_rig.h"

namespace radixshmem {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRounds = 2;
#else
constexpr int kRounds = 6;
#endif

int rounds() {
  return std::getenv("RADIX_TEST_FULL") != nullptr ? 200 : kRounds;
}

constexpr int kRoundsThatSeeAll = 20;  // with fewer, chance may leave something out

std::uint32_t new_seed() {
  const char* given = std::getenv("RADIX_TEST_SEED");
  return given != nullptr ? static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10))
                          : std::random_device{}();
}

TEST(ClusterModelTest, EveryKeyOfALivingTreeIsFoundAndNothingElseOnceHealed) {
  const std::uint32_t seed = new_seed();
  SCOPED_TRACE(testing::Message() << "RADIX_TEST_SEED=" << seed);
  ClusterRig cluster(seed, 4096);
  cluster.start_all();
  std::uint64_t windows = 0;
  for (int round = 0; round < rounds() && !testing::Test::HasFailure(); ++round) {
    for (int i = 0; i < 400; ++i) cluster.step();
    const bool heal = round % 2 == 0;
    cluster.come_to_rest(heal);
    const auto f = cluster.figures();
    ASSERT_EQ(f.crowded, 0u) << "there is room for all";
    ASSERT_EQ(f.missing, 0u) << "of " << f.keys << " keys, round " << round;
    if (heal) {
      ASSERT_EQ(f.entries, f.keys) << "round " << round;
      ASSERT_EQ(f.unmarked, 0u) << "of " << f.windows << " windows and checkpoints, round "
                                << round;
      windows += f.windows;
    }
  }
  if (rounds() < kRoundsThatSeeAll) return;
  const auto f = cluster.figures();
  EXPECT_GT(f.batches_lost, 0u);
  EXPECT_GT(f.members_changed, 0u);
  EXPECT_GT(windows, 0u);
}

TEST(ClusterModelTest, WhatIsNotFoundInACrowdedDirectoryIsCounted) {
  const std::uint32_t seed = new_seed();
  SCOPED_TRACE(testing::Message() << "RADIX_TEST_SEED=" << seed);
  ClusterRig cluster(seed, 4);  // 16 entries each
  cluster.start_all();
  std::uint64_t missing = 0;
  for (int round = 0; round < rounds(); ++round) {
    for (int i = 0; i < 60; ++i) cluster.step();
    cluster.come_to_rest(/*heal=*/true);
    const auto f = cluster.figures();
    missing += f.missing;
    ASSERT_LE(f.entries, 4u * 16);
    ASSERT_LE(f.missing, f.crowded);
  }
  if (rounds() < kRoundsThatSeeAll) return;
  EXPECT_GT(missing, 0u);
}

}  // namespace
}  // namespace radixshmem
