// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/pending_keys.h"

#include <algorithm>

namespace radixshmem {

void PendingKeys::put(SegmentId segment, const PendingKey& key, Time due) {
  const auto [at, made] = groups_.try_emplace(segment);
  Group& group = at->second;
  if (made || due < group.due) looks_.push({due, segment});
  group.due = due;
  group.keys.push_back(key);
  ++keys_;
}

void PendingKeys::add(SegmentId segment, const PendingKey& key, Time now) {
  put(segment, key, now + idle_ms_);
}

void PendingKeys::retry(SegmentId segment, const PendingKey& key, Time now, Time wait_ms) {
  put(segment, key, now + wait_ms);
}

void PendingKeys::touch(SegmentId segment, Time now) {
  const auto at = groups_.find(segment);
  if (at != groups_.end()) at->second.due = now + idle_ms_;
}

void PendingKeys::complete(SegmentId segment) {
  const auto at = groups_.find(segment);
  if (at == groups_.end()) return;
  Group& group = at->second;
  if (group.ready == 0) complete_.push_back(segment);
  ready_ += group.keys.size() - group.ready;
  group.ready = group.keys.size();
}

void PendingKeys::remove(SegmentId segment, BlockHash key) {
  const auto at = groups_.find(segment);
  if (at == groups_.end()) return;
  Group& group = at->second;
  const auto found = std::ranges::find(group.keys, key, &PendingKey::key);
  if (found == group.keys.end()) return;
  if (found - group.keys.begin() < static_cast<std::ptrdiff_t>(group.ready)) {
    --group.ready;
    --ready_;
  }
  group.keys.erase(found);
  --keys_;
  if (group.keys.empty()) groups_.erase(at);
}

void PendingKeys::clear() noexcept {
  groups_.clear();
  looks_ = {};
  complete_.clear();
  keys_ = 0;
  ready_ = 0;
}

void PendingKeys::take_first(SegmentId segment, Group& group, std::size_t count,
                             std::vector<Due>& out) {
  const auto end = group.keys.begin() + static_cast<std::ptrdiff_t>(count);
  for (auto key = group.keys.begin(); key != end; ++key) out.push_back({segment, *key});
  group.keys.erase(group.keys.begin(), end);
  keys_ -= count;
  const std::size_t ready = std::min(group.ready, count);
  group.ready -= ready;
  ready_ -= ready;
}

std::vector<PendingKeys::Due> PendingKeys::take_due(Time now, bool all) {
  std::vector<Due> out;
  for (const SegmentId segment : complete_) {
    const auto at = groups_.find(segment);
    if (at == groups_.end()) continue;
    take_first(segment, at->second, at->second.ready, out);
    if (at->second.keys.empty()) groups_.erase(at);
  }
  complete_.clear();
  while (!looks_.empty()) {
    const bool forced = all || keys_ > most_;
    const Look look = looks_.top();
    if (look.when > now && !forced) break;
    looks_.pop();
    const auto at = groups_.find(look.segment);
    if (at == groups_.end()) continue;
    if (at->second.due > now && !forced) {
      looks_.push({at->second.due, look.segment});
      continue;
    }
    take_first(look.segment, at->second, at->second.keys.size(), out);
    groups_.erase(at);
  }
  return out;
}

}  // namespace radixshmem
