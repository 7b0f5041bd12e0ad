// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Keys that were stored and are not published yet, by the segment that they are in.
//
// A segment whose chunk is complete is due at once, one that nothing is added to any more after
// `idle_ms`. When there are too many, the oldest are due.
// Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace radixshmem {

struct PendingKey {
  BlockHash key = 0;
  Position position = 0;
  std::uint64_t since_ms = 0;
};

class PendingKeys final {
 public:
  using Time = std::uint64_t;  // ms

  PendingKeys(Time idle_ms, std::size_t most) noexcept : idle_ms_(idle_ms), most_(most) {}

  void add(SegmentId segment, const PendingKey& key, Time now);
  // Puts back a key that could not be read yet: due after `wait_ms`.
  void retry(SegmentId segment, const PendingKey& key, Time now, Time wait_ms);
  // The segment goes on, without another key.
  void touch(SegmentId segment, Time now);
  // The keys that the segment has by now are due at once.
  void complete(SegmentId segment);
  void remove(SegmentId segment, BlockHash key);
  void clear() noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return keys_; }
  // Returns: how many are due because their segment is complete.
  [[nodiscard]] std::size_t ready() const noexcept { return ready_; }

  // Calls release(segment, key) for every key that is due; for all of them if `all`.
  template <typename Release>
  void take(Time now, bool all, Release release) {
    for (const Due& due : take_due(now, all)) release(due.segment, due.key);
  }

 private:
  struct Group {
    Time due = 0;  // touching only raises it; whoever looks at the group early looks again then
    std::size_t ready = 0;  // of the first keys
    std::vector<PendingKey> keys;
  };
  struct Look {
    Time when = 0;
    SegmentId segment = 0;
    bool operator>(const Look& other) const noexcept { return when > other.when; }
  };
  struct Due {
    SegmentId segment = 0;
    PendingKey key;
  };
  [[nodiscard]] std::vector<Due> take_due(Time now, bool all);
  void take_first(SegmentId segment, Group& group, std::size_t count, std::vector<Due>& out);
  void put(SegmentId segment, const PendingKey& key, Time due);

  Time idle_ms_;
  std::size_t most_;
  std::unordered_map<SegmentId, Group> groups_;
  // Every group has a look at its due time or before.
  std::priority_queue<Look, std::vector<Look>, std::greater<>> looks_;
  std::vector<SegmentId> complete_;  // have ready keys, or had
  std::size_t keys_ = 0;
  std::size_t ready_ = 0;
};

}  // namespace radixshmem
