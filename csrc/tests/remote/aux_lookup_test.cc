// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Lookups that want a SWA window or a MAMBA checkpoint too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "tests/remote/cluster_rig.h"

namespace radixshmem {
namespace {

constexpr std::uint32_t kWindow = 24;
constexpr std::uint32_t kFullSwa = kMaskFull | kMaskSwa;
constexpr std::uint32_t kFullMamba = kMaskFull | kMaskMamba;
constexpr std::uint32_t kAll = kMaskFull | kMaskSwa | kMaskMamba;

class AuxLookupTest : public testing::Test {
 protected:
  void start(std::size_t nodes, std::uint32_t swa = 1024, std::uint32_t mamba = 64) {
    cluster_ = std::make_unique<ClusterRig>(nodes, cluster_plan(4096, swa, mamba, kWindow));
    cluster_->connect_all(0);
  }
  ClusterRig& cluster() { return *cluster_; }
  void put_swa(std::size_t i, const Path& path) {
    const auto n = static_cast<std::uint32_t>(path.size());
    cluster_->put_aux(i, Component::kSwa, path, std::min(n, kWindow));
  }
  void put_mamba(std::size_t i, const Path& path) {
    cluster_->put_aux(i, Component::kMamba, path, 1);
  }

 private:
  std::unique_ptr<ClusterRig> cluster_;
};

TEST_F(AuxLookupTest, AWindowTakesOneRoundMore) {
  start(3);
  const Path path = make_path(1, 200);
  cluster().put(1, path);
  put_swa(1, path);
  cluster().publish_all();
  const RemoteHit hit = cluster().find(0, path, kFullSwa);
  EXPECT_EQ(hit.common_hit, 200u);
  EXPECT_EQ(hit.swa_start, 200 - kWindow);
  EXPECT_EQ(hit.swa_slots.size(), kWindow);
  EXPECT_EQ(hit.swa_rank, 1);
  EXPECT_FALSE(hit.mamba.has_value());
  EXPECT_EQ(hit.figures.rounds, 3u);
}

TEST_F(AuxLookupTest, ACheckpointTakesOneRoundMore) {
  start(3);
  const Path path = make_path(2, 200);
  cluster().put(1, path);
  put_mamba(1, first_of(path, 150));
  cluster().publish_all();
  const RemoteHit hit = cluster().find(0, path, kFullMamba);
  EXPECT_EQ(hit.common_hit, 150u);
  ASSERT_TRUE(hit.mamba.has_value());
  EXPECT_EQ(hit.mamba->rank, 1);
  EXPECT_TRUE(hit.swa_slots.empty());
  EXPECT_EQ(hit.figures.rounds, 3u);
}

TEST_F(AuxLookupTest, ACheckpointWithoutASwaPoolIsFoundToo) {
  start(2, /*swa=*/0);
  const Path path = make_path(3, 100);
  cluster().put(1, path);
  put_mamba(1, path);
  cluster().publish_all();
  EXPECT_EQ(cluster().find(0, path, kFullMamba).common_hit, 100u);
  EXPECT_EQ(cluster().find(0, path, kFullSwa & ~kMaskFull).common_hit, 0u);
}

TEST_F(AuxLookupTest, TheDeepestNodeIsNotTheOneWithTheWindow) {
  start(3);
  const Path path = make_path(4, 500);
  cluster().put(1, path);
  cluster().put(2, first_of(path, 300));
  put_swa(2, first_of(path, 250));
  cluster().publish_all();
  const RemoteHit hit = cluster().find(0, path, kFullSwa);
  EXPECT_EQ(hit.common_hit, 250u);
  EXPECT_EQ(hit.swa_rank, 2);
  EXPECT_EQ(cluster().find(0, path).common_hit, 500u);
}

TEST_F(AuxLookupTest, BothEndTogether) {
  start(2);
  const Path path = make_path(5, 300);
  cluster().put(1, path);
  put_swa(1, path);
  put_swa(1, first_of(path, 280));
  put_mamba(1, first_of(path, 280));
  cluster().publish_all();
  const RemoteHit hit = cluster().find(0, path, kAll);
  EXPECT_EQ(hit.common_hit, 280u);
  EXPECT_TRUE(hit.mamba.has_value());
  EXPECT_EQ(hit.swa_slots.size(), kWindow);
  EXPECT_LE(hit.figures.rounds, 3u);
}

TEST_F(AuxLookupTest, AWindowMayBeginInsideTheLocalHit) {
  start(2);
  const Path path = make_path(6, 140);
  cluster().put(0, first_of(path, 130));
  put_swa(0, first_of(path, 130));
  cluster().put(1, path);
  put_swa(1, path);
  cluster().publish_all();
  const RemoteHit hit = cluster().find(0, path, kFullSwa);
  EXPECT_EQ(hit.common_hit, 140u);
  EXPECT_EQ(hit.swa_start, 140 - kWindow);
  ASSERT_EQ(hit.full.size(), 1u);
  EXPECT_EQ(hit.full[0].offset, 130u);
}

TEST_F(AuxLookupTest, WhatOthersHaveOfAWindowDoesNotHideIt) {
  start(3);
  const Path path = make_path(10, 200);
  cluster().put(1, first_of(path, 190));
  cluster().put(2, path);
  put_swa(2, path);
  cluster().publish_all();
  // So key 160 is served by node 1, with blocks up to 190; the window begins at 176.
  const auto incarnation = ClusterRig::incarnation16(cluster().node(2));
  for (std::size_t i = 0; i < 3; ++i) {
    for (const Position p : {160u, 176u}) {
      cluster().node(i).directory.retract(path[p], 2, incarnation);
    }
  }
  const RemoteHit hit = cluster().find(0, path, kFullSwa);
  EXPECT_EQ(hit.common_hit, 200u);
  EXPECT_EQ(hit.figures.rounds, 3u);
}

TEST_F(AuxLookupTest, AShortPathHasAShortWindow) {
  start(2);
  const Path path = make_path(7, 9);
  cluster().put(1, path);
  put_swa(1, path);
  cluster().publish_all();
  const RemoteHit hit = cluster().find(0, path, kFullSwa);
  EXPECT_EQ(hit.common_hit, 9u);
  EXPECT_EQ(hit.swa_start, 0u);
}

TEST_F(AuxLookupTest, WithoutAWindowAnywhereOneRoundTellsIt) {
  start(2);
  const Path path = make_path(8, 300);
  cluster().put(1, path);
  cluster().publish_all();
  const RemoteHit hit = cluster().find(0, path, kFullSwa);
  EXPECT_EQ(hit.common_hit, 0u);
  EXPECT_TRUE(hit.candidates.empty());
  EXPECT_EQ(hit.figures.rounds, 1u);
}

TEST_F(AuxLookupTest, AWindowThatHasGoneIsLookedForAtTheNextHolder) {
  start(3);
  const Path path = make_path(9, 300);
  cluster().put(1, path);
  put_swa(1, path);
  cluster().put(2, path);
  put_swa(2, first_of(path, 200));
  cluster().publish_all();
  EXPECT_EQ(cluster().node(1).rig.tree().evict_aux(Component::kSwa, kWindow), kWindow);
  const RemoteHit hit = cluster().find(0, path, kFullSwa);
  EXPECT_EQ(hit.common_hit, 200u);
  EXPECT_EQ(hit.swa_rank, 2);
  EXPECT_EQ(hit.figures.retries, 1u);
}

// What a remote node has, with windows: the deepest end, and how many nodes have one in its
// granule.
struct AuxTruth {
  Position end = 0;
  std::size_t nodes = 0;
};
AuxTruth truth_of(ClusterRig& cluster, const Path& path, std::uint32_t mask) {
  std::vector<Position> ends;
  for (std::size_t i = 1; i < cluster.size(); ++i) {
    ends.push_back(cluster.node(i).rig.hit(path, mask));
  }
  AuxTruth truth{*std::max_element(ends.begin(), ends.end()), 0};
  for (const Position end : ends) {
    if (end != 0 && (end - 1) / cluster.grid() == (truth.end - 1) / cluster.grid()) ++truth.nodes;
  }
  return truth;
}

TEST_F(AuxLookupTest, RandomWindowsAreFound) {
  const std::uint64_t seeds = std::getenv("RADIX_TEST_FULL") != nullptr ? 200 : 8;
  std::size_t found = 0;
  std::size_t sure = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    start(4);
    const Path stem = make_path(seed, 260);
    std::vector<Path> paths;
    for (std::size_t k = 0; k < 24; ++k) {
      const std::size_t i = random() % 4;
      const Path path = branch_of(stem, 1 + random() % stem.size(), random(), random() % 60);
      cluster().put(i, path);
      paths.push_back(path);
      const Path part = first_of(path, 1 + random() % path.size());
      if (random() % 2 == 0) put_swa(i, part);
      if (random() % 2 == 0) put_mamba(i, part);
    }
    cluster().publish_all();
    for (const Path& path : paths) {
      for (const std::uint32_t mask : {kFullSwa, kFullMamba, kAll}) {
        const Position local = cluster().node(0).rig.hit(path, mask);
        const AuxTruth truth = truth_of(cluster(), path, mask);
        const RemoteHit hit = cluster().find(0, path, mask);
        EXPECT_LE(hit.common_hit, std::max(local, truth.end));
        // A flag may be that of another path with the same key; two holders are looked at.
        const auto claims = std::count_if(
            hit.candidates.begin(), hit.candidates.end(), [&](const PullCandidate& candidate) {
              return candidate.blocks - 1 + cluster().grid() >= truth.end;
            });
        if (truth.end > local && claims <= 2) {
          EXPECT_GT(hit.common_hit + (truth.nodes == 1 ? 1 : cluster().grid()), truth.end);
          ++sure;
        }
        EXPECT_LE(hit.figures.rounds, 5u);
        if (hit.common_hit > local) ++found;
        if (testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_GT(sure, 10 * seeds);  // or the test says nothing
  EXPECT_GE(found, sure);
}

}  // namespace
}  // namespace radixshmem
