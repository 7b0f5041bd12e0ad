// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Which member keeps which shard: every node computes the same map from the same members.
//
// Weighted rendezvous: of each shard every member has a random number in (0, 1], u, from shard and
// rank; the member with the least -log2(u) / weight keeps it, the next one is the replica. So a
// member keeps its part by weight, a joiner takes from everybody and from nobody more than its
// part, and what a leaver kept goes to its replicas. Integers only: the same on every machine.
// Who may call: anybody, pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "directory/peer_table.h"

namespace radixshmem {

struct ShardMember {
  std::uint16_t rank = 0;
  std::uint32_t weight = 0;  // lines of its directory, below 2^31; 0 = keeps nothing
};

// Above kManyMembers members only the kDirectoryMembers best of them keep shards: a reader then
// has fewer peers to be connected to.
inline constexpr std::size_t kManyMembers = 256;
inline constexpr std::size_t kDirectoryMembers = 128;

using ShardMap = std::vector<ShardRanks>;  // by shard

// Requires: no rank twice; the order does not matter. Returns: kShards entries; kNoShardRank where
// there is nobody, and for every replica unless `replicas` is 2.
[[nodiscard]] ShardMap make_shard_map(std::span<const ShardMember> members, std::uint32_t replicas);

}  // namespace radixshmem
