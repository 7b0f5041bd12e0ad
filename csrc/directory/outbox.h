// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What is to be told to the keepers of shards, and to whom.
//
// A key goes to the keeper of its shard and to the replica by each of the maps: the one that is
// read by, the one to come while members are warming, those that peers may still read by. Of
// several things that are said of one key before it goes out, the last holds; aux bits add up.
// Thread safety: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "directory/directory_wire.h"
#include "directory/shard_map.h"

namespace radixshmem {

// Who publishes.
struct Publishing {
  std::uint16_t rank = 0;
  std::uint64_t incarnation = 0;
  std::uint64_t digest = 0;
};

// One batch for one keeper; `to` may be the publishing rank itself.
struct AddressedBatch {
  std::uint16_t to = 0;
  std::uint64_t sequence = 0;
  std::uint32_t keys = 0;
  std::vector<std::byte> bytes;
};

inline constexpr std::size_t kMaxShardMaps = 5;  // one to read by, one to come, three of before

// Ranks without repetition.
struct Keepers {
  std::array<std::uint16_t, 2 * kMaxShardMaps> rank{};
  std::uint32_t count = 0;

  void add(std::uint16_t keeper) noexcept {
    if (keeper != kNoShardRank && !has(keeper)) rank[count++] = keeper;
  }
  [[nodiscard]] std::span<const std::uint16_t> all() const& noexcept {
    return {rank.data(), count};
  }
  std::span<const std::uint16_t> all() const&& = delete;
  [[nodiscard]] bool has(std::uint16_t keeper) const noexcept {
    for (std::uint32_t i = 0; i < count; ++i) {
      if (rank[i] == keeper) return true;
    }
    return false;
  }
};

using ShardMaps = std::vector<ShardMap>;  // kMaxShardMaps at most

[[nodiscard]] inline Keepers keepers_in(const ShardMaps& maps, std::uint16_t shard) noexcept {
  Keepers out;
  for (const ShardMap& map : maps) {
    for (const std::uint16_t rank : map[shard]) out.add(rank);
  }
  return out;
}

class Outbox final {
 public:
  explicit Outbox(const Publishing& who) : who_(who) {}

  [[nodiscard]] const Publishing& who() const noexcept { return who_; }
  // A keeper that is in no map any more gets one last sweep. Returns: the maps before.
  ShardMaps set_maps(ShardMaps maps);
  [[nodiscard]] Keepers keepers_of(std::uint16_t shard) const noexcept {
    return keepers_in(maps_, shard);
  }
  [[nodiscard]] Keepers keepers_of(BlockHash key) const noexcept {
    return keepers_of(place_of(key, who_.digest).shard);
  }

  void publish(const PublishRecord& record, std::span<const std::uint16_t> to);
  void retract(BlockHash key);
  // Forgets what is here; every keeper is told to forget this rank.
  void drop_everything();
  // Everything said from now on is of the next generation; when it has been said, sweep() tells
  // every keeper to forget the others.
  void begin_generation() noexcept { ++generation_; }
  void sweep();

  [[nodiscard]] std::size_t keys() const noexcept { return keys_; }
  // Returns: all that is here, in batches; those for one keeper in the order to send them.
  [[nodiscard]] std::vector<AddressedBatch> take();

 private:
  struct Said {
    PublishRecord record;
    bool retract = false;
  };
  struct Queue {
    std::unordered_map<BlockHash, Said> said;
    bool drop = false;
    bool sweep = false;
    bool in_maps = false;
  };
  void take_queue(std::uint16_t to, Queue& queue, std::vector<AddressedBatch>& out);

  Publishing who_;
  ShardMaps maps_;
  std::map<std::uint16_t, Queue> queues_;  // by keeper
  std::size_t keys_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint8_t generation_ = 0;
};

}  // namespace radixshmem
