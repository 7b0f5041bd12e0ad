// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/outbox.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace radixshmem {
namespace {

constexpr std::uint32_t kClearAll = kAuxMask << kAuxClearShift;

// Returns: the flags that do what `first` and then `then` does.
std::uint32_t joined(std::uint32_t first, std::uint32_t then) noexcept {
  const std::uint32_t clear = then >> kAuxClearShift;
  const std::uint32_t set = ((first & kAuxMask & ~clear) | then) & kAuxMask;
  return set | ((first | then) & kClearAll);
}

}  // namespace

ShardMaps Outbox::set_maps(ShardMaps maps) {
  std::vector<bool> in_maps(kNoShardRank + 1u);
  RADIX_CHECK(maps.size() <= kMaxShardMaps, maps.size());
  for (const ShardMap& map : maps) {
    RADIX_CHECK(map.size() == kShards, map.size());
    for (const ShardRanks& ranks : map) in_maps[ranks[0]] = in_maps[ranks[1]] = true;
  }
  for (auto& [to, queue] : queues_) queue.in_maps = false;
  for (std::uint32_t rank = 0; rank < kNoShardRank; ++rank) {
    if (in_maps[rank]) queues_[static_cast<std::uint16_t>(rank)].in_maps = true;
  }
  return std::exchange(maps_, std::move(maps));
}

void Outbox::publish(const PublishRecord& record, std::span<const std::uint16_t> to) {
  for (const std::uint16_t rank : to) {
    const auto [at, made] = queues_[rank].said.try_emplace(record.key, Said{record, false});
    if (made) {
      ++keys_;
      continue;
    }
    Said& before = at->second;
    // After a retraction an entry that is still there gets no aux bits from before.
    const std::uint32_t first = before.retract ? kClearAll : before.record.flags;
    before = {record, false};
    before.record.flags = joined(first, record.flags);
  }
}

void Outbox::retract(BlockHash key) {
  const Keepers to = keepers_of(key);
  for (const std::uint16_t rank : to.all()) {
    const auto [at, made] = queues_[rank].said.insert_or_assign(key, Said{{key, 0, 0}, true});
    keys_ += made ? 1 : 0;
  }
}

void Outbox::drop_everything() {
  for (auto& [to, queue] : queues_) {
    queue.said.clear();
    queue.drop = true;
  }
  keys_ = 0;
}

void Outbox::sweep() {
  for (auto& [to, queue] : queues_) queue.sweep = true;
}

void Outbox::take_queue(std::uint16_t to, Queue& queue, std::vector<AddressedBatch>& out) {
  std::vector<PublishRecord> publishes;
  std::vector<BlockHash> retracts;
  auto at = queue.said.begin();
  do {
    publishes.clear();
    retracts.clear();
    for (; at != queue.said.end() && publishes.size() + retracts.size() < kMaxBatchKeys; ++at) {
      if (at->second.retract) {
        retracts.push_back(at->first);
      } else {
        publishes.push_back(at->second.record);
      }
    }
    BatchHeader header;
    if (std::exchange(queue.drop, false)) header.flags |= kDropFirst;
    if (at == queue.said.end() && std::exchange(queue.sweep, false)) header.flags |= kSweepAfter;
    header.generation = generation_;
    header.rank = who_.rank;
    header.incarnation = who_.incarnation;
    header.digest = who_.digest;
    header.sequence = ++sequence_;
    out.push_back({to, header.sequence,
                   static_cast<std::uint32_t>(publishes.size() + retracts.size()),
                   pack_batch(header, publishes, retracts)});
  } while (at != queue.said.end());
  queue.said.clear();
}

std::vector<AddressedBatch> Outbox::take() {
  std::vector<AddressedBatch> out;
  for (auto at = queues_.begin(); at != queues_.end();) {
    Queue& queue = at->second;
    const bool swept = queue.sweep;
    if (!queue.said.empty() || queue.drop || queue.sweep) take_queue(at->first, queue, out);
    at = swept && !queue.in_maps ? queues_.erase(at) : std::next(at);
  }
  keys_ = 0;
  return out;
}

}  // namespace radixshmem
