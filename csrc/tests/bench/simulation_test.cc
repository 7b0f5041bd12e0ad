// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The simulator of clusters: what must be true of its figures, whatever they are.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "bench/simulation/cluster.h"
#include "bench/simulation/simulate.h"
#include "directory/directory_wire.h"

namespace radixshmem::bench {
namespace {

// Chats of a few turns that share a system prompt of 16 blocks.
WorkloadFile chats(std::uint64_t count) {
  WorkloadFile file;
  file.short_conversations = count;
  file.offsets.push_back(0);
  for (std::uint64_t chat = 0; chat < count; ++chat) {
    for (std::uint64_t i = 0; i < 200; ++i) {
      file.hashes.push_back(mix_hash(i < 16 ? i : chat * 1000 + i) | 1);
    }
    file.offsets.push_back(file.hashes.size());
  }
  for (std::uint64_t blocks = 60; blocks <= 200; blocks += 35) {
    for (std::uint64_t chat = 0; chat < count; ++chat) file.inserts.push_back({chat, blocks});
  }
  return file;
}

std::map<std::string, double> figures_of(std::size_t nodes, std::uint64_t directory_bytes = 0) {
  SimulationOptions options;
  options.nodes = nodes;
  options.slots = kLeastSlots;
  options.lookups = 100;
  options.directory_bytes = directory_bytes;
  options.publishing_slots = 4096;
  const Figures figures = simulate(options, chats(20 * nodes));
  return {figures.begin(), figures.end()};
}

void expect_sound(const std::map<std::string, double>& f) {
  double rounds = 0;
  for (int r = 0; r <= 6; ++r) rounds += f.at("rounds_" + std::to_string(r));
  EXPECT_EQ(rounds, f.at("lookups"));
  EXPECT_GE(f.at("lookups"), 50);
  EXPECT_EQ(f.at("rounds_above_2_many_keys"), 0);  // paths have 13 keys
  EXPECT_EQ(f.at("rounds_6"), 0);
  EXPECT_GT(f.at("remote_blocks_found"), 0);
  EXPECT_LE(f.at("remote_blocks_found"), f.at("remote_blocks_exist"));
  EXPECT_EQ(f.at("stale_entries"), 0);
  EXPECT_LE(f.at("blocks"), f.at("nodes") * f.at("slots"));
  EXPECT_GT(f.at("blocks"), 0.5 * f.at("nodes") * f.at("slots"));
  EXPECT_GT(f.at("keys_published"), f.at("keys_held"));  // some were evicted
  EXPECT_GE(f.at("keys_held"), f.at("blocks") / f.at("grid"));
  EXPECT_LE(f.at("directory_entries"), f.at("directory_entries_max"));
  EXPECT_LE(f.at("directory_entries") + f.at("directory_waiting"), f.at("keys_held"));
  EXPECT_GE(f.at("keeper_reads_max_over_mean"), 1);
  // Every key that is sent has its record, every batch its header.
  for (const std::string name : {"store_per_s", "heal_per_s", "leave"}) {
    const double batches = f.at(name + "_batches");
    EXPECT_GT(f.at(name + "_keys"), 0) << name;
    EXPECT_LE(f.at(name + "_bytes"),
              kBatchHeaderBytes * batches + kPublishBytes * f.at(name + "_keys") + 1);
    EXPECT_GE(f.at(name + "_bytes"),
              kBatchHeaderBytes * batches + kRetractBytes * f.at(name + "_keys") - 1);
  }
}

TEST(Simulation, FindsEverythingWhereTheDirectoryHasRoom) {
  const auto f = figures_of(5, 64 << 10);
  expect_sound(f);
  EXPECT_EQ(f.at("keepers"), 5);
  EXPECT_EQ(f.at("keys_dropped") + f.at("keys_displaced"), 0);
  EXPECT_EQ(f.at("directory_entries") + f.at("directory_waiting"), f.at("keys_held"));
  EXPECT_EQ(f.at("remote_blocks_found"), f.at("remote_blocks_exist"));
  EXPECT_NEAR(f.at("leave_shards_moved"), 1.0 / 5, 0.02);
  // A fifth of the keys gets new keepers; a quarter of those is the node itself.
  EXPECT_NEAR(f.at("leave_keys") / f.at("heal_keys"), 3.0 / 16, 0.06);
}

TEST(Simulation, KeepersOfALargeClusterNeedMoreRoom) {
  const auto f = figures_of(kMaxPeers + 77);
  expect_sound(f);
  EXPECT_EQ(f.at("keepers"), static_cast<double>(kDirectoryMembers));
  EXPECT_GT(f.at("keys_held"), f.at("directory_entries_max"));
  EXPECT_GT(f.at("keys_dropped"), 0);
}

TEST(Simulation, FewNodesHaveTheirNumbersAsRanks) {
  Names names(3, {0, 1, 2});
  names.begin();
  EXPECT_EQ(names.count(), 3u);
  EXPECT_EQ(names.name(2), 2);
  EXPECT_EQ(names.node(1), 1);
}

TEST(Simulation, ManyNodesGetNamesAsTheyAreMet) {
  Names names(4096, {7, 4000});
  EXPECT_EQ(names.name(4000), 1);
  const Rank name = names.name(2000);
  EXPECT_EQ(name, 2);
  EXPECT_EQ(names.node(name), 2000);
  names.begin();
  EXPECT_EQ(names.count(), 2u);
  EXPECT_EQ(names.name(3000), 2);
  for (Rank node = 8; names.count() < kMaxPeers; ++node) EXPECT_NE(names.name(node), kNoRank);
  EXPECT_EQ(names.name(3999), kNoRank);
  EXPECT_EQ(names.name(7), 0);
}

}  // namespace
}  // namespace radixshmem::bench
