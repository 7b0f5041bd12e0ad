// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/shard_map.h"

#include <algorithm>
#include <array>
#include <bit>

namespace radixshmem {
namespace {

constexpr std::uint32_t kFractionBits = 24;
constexpr std::uint32_t kTableBits = 8;
constexpr std::uint64_t kAllShards = 0xa11;  // in the place of a shard: who keeps any

// log2(1 + i / 256) as a fraction of kFractionBits bits, by squaring: no floating point.
constexpr std::array<std::uint32_t, (1u << kTableBits) + 1> log2_table() noexcept {
  std::array<std::uint32_t, (1u << kTableBits) + 1> table{};
  for (std::uint32_t i = 0; i < 1u << kTableBits; ++i) {
    std::uint64_t x = (std::uint64_t{1} << 31) + (std::uint64_t{i} << (31 - kTableBits));
    std::uint32_t log = 0;
    for (std::uint32_t bit = 0; bit < kFractionBits; ++bit) {
      x = x * x >> 31;
      log <<= 1;
      if (x >= std::uint64_t{1} << 32) {
        x >>= 1;
        log |= 1;
      }
    }
    table[i] = log;
  }
  table[1u << kTableBits] = 1u << kFractionBits;
  return table;
}

// Returns: -log2(x / 2^64), at most 64, with kFractionBits bits of fraction. Requires: x > 0.
std::uint64_t minus_log2(std::uint64_t x) noexcept {
  static constexpr auto kTable = log2_table();
  constexpr std::uint32_t kStepBits = 24;  // between two entries of the table
  const auto zeros = static_cast<std::uint32_t>(std::countl_zero(x));
  const std::uint64_t mantissa = x << zeros << 1 >> (64 - kTableBits - kStepBits);
  const std::uint64_t at = mantissa >> kStepBits;
  const std::uint64_t step = mantissa & ((1u << kStepBits) - 1);
  const std::uint64_t log = kTable[at] + ((kTable[at + 1] - kTable[at]) * step >> kStepBits);
  return (std::uint64_t{zeros + 1} << kFractionBits) - log;
}

// What a member would pay to keep a shard. Less is better.
struct Bid {
  std::uint64_t cost = 0;
  std::uint32_t weight = 0;
  std::uint16_t rank = kNoShardRank;

  [[nodiscard]] bool better_than(const Bid& other) const noexcept {
    const std::uint64_t mine = cost * other.weight;  // below 2^62
    const std::uint64_t theirs = other.cost * weight;
    return mine != theirs ? mine < theirs : rank < other.rank;
  }
};

Bid bid_of(const ShardMember& member, std::uint64_t shard_mix) noexcept {
  const std::uint64_t draw = mix_hash(shard_mix + member.rank * std::uint64_t{0x9e3779b97f4a7c15});
  return {minus_log2(draw | 1), member.weight, member.rank};
}

std::vector<ShardMember> keepers(std::span<const ShardMember> members) {
  std::vector<ShardMember> keep;
  std::ranges::copy_if(members, std::back_inserter(keep),
                       [](const ShardMember& m) { return m.weight != 0; });
  if (keep.size() > kManyMembers) {
    const std::uint64_t mix = mix_hash(kAllShards << 32);
    std::ranges::nth_element(keep, keep.begin() + kDirectoryMembers,
                             [&](const ShardMember& a, const ShardMember& b) {
                               return bid_of(a, mix).better_than(bid_of(b, mix));
                             });
    keep.resize(kDirectoryMembers);
  }
  return keep;
}

}  // namespace

ShardMap make_shard_map(std::span<const ShardMember> members, std::uint32_t replicas) {
  const std::vector<ShardMember> keep = keepers(members);
  ShardMap map(kShards, {kNoShardRank, kNoShardRank});
  if (keep.empty()) return map;
  for (std::uint32_t shard = 0; shard < kShards; ++shard) {
    const std::uint64_t mix = mix_hash(shard + 1);
    Bid first;
    Bid second;
    for (const ShardMember& member : keep) {
      const Bid bid = bid_of(member, mix);
      if (first.rank == kNoShardRank || bid.better_than(first)) {
        second = first;
        first = bid;
      } else if (second.rank == kNoShardRank || bid.better_than(second)) {
        second = bid;
      }
    }
    map[shard] = {first.rank, replicas > 1 ? second.rank : kNoShardRank};
  }
  return map;
}

}  // namespace radixshmem
