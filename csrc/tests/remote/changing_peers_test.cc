// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Lookups while the peer changes its tree and the directory is written.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/remote/cluster_rig.h"

namespace radixshmem {
namespace {

constexpr std::size_t kStemBlocks = 200;
constexpr std::uint32_t kBranches = 16;

// What the peer may have of a branch: all of it but the last block, which nobody ever stores.
Path branch(const Path& stem, std::uint32_t k) {
  return branch_of(stem, 11 * k + 20, 100 + k, 60);
}

TEST(ChangingPeersTest, LookupsFindNothingThatWasNeverThere) {
  ClusterRig cluster(2, cluster_plan(512));
  const Path stem = make_path(1, kStemBlocks);
  cluster.connect_all(0);
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> found{0};

  const auto look = [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    while (!stop.load()) {
      const Path path = branch(stem, static_cast<std::uint32_t>(random() % kBranches));
      const RemoteHit hit = lookup(cluster.node(0).peers, cluster.request(path));
      Position at = 0;
      for (const RemoteFragment& fragment : hit.full) {
        EXPECT_EQ(fragment.offset, at);
        EXPECT_EQ(fragment.rank, 1);
        at += static_cast<Position>(fragment.slots.size());
        for (const std::int32_t slot : fragment.slots) EXPECT_LT(slot, 512);
      }
      EXPECT_EQ(at, hit.common_hit);
      EXPECT_LT(hit.common_hit, path.size());
      EXPECT_EQ(hit.figures.failures, 0u);
      EXPECT_LE(hit.figures.rounds, 4u);
      if (hit.common_hit > 0) found.fetch_add(1);
    }
  };
  std::thread readers[] = {std::thread(look, 1), std::thread(look, 2)};

  std::mt19937_64 random(3);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  ClusterNode& peer = cluster.node(1);
  for (int step = 0; step < 300 || found.load() < 100; ++step) {
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "only " << found.load() << " lookups found something in 20 s";
      break;
    }
    const Path path = branch(stem, static_cast<std::uint32_t>(random() % kBranches));
    const Path stored = first_of(path, path.size() - 1);
    if (peer.rig.free_slots() < stored.size()) (void)peer.rig.tree().evict(150);
    if (random() % 50 == 0) peer.rig.tree().reset();
    (void)peer.rig.put(stored);
    if (peer.paths.size() < kBranches) peer.paths.push_back(stored);
    cluster.publish(1);
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_SOUND(peer.rig);
}

}  // namespace
}  // namespace radixshmem
