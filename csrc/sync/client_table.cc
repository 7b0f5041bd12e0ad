// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "sync/client_table.h"

#include <algorithm>
#include <functional>

#include "sync/fault_point.h"

namespace radixshmem {

void ClientTable::claim(ClientId id, std::uint32_t group, std::uint32_t pid) noexcept {
  ClientEntry& entry = entries_[id];
  if (id >= ids_used()) root_->ids_used.store(id + 1, std::memory_order_release);
  entry.generation.store(entry.generation.load(std::memory_order_relaxed) + 1,
                         std::memory_order_release);
  entry.group.store(group, std::memory_order_release);
  entry.pid.store(pid, std::memory_order_release);
  entry.exited.store(0, std::memory_order_release);
  entry.state.store(static_cast<std::uint32_t>(ClientState::kLive), std::memory_order_release);
}

std::uint32_t ClientTable::clear_pins(ClientId id) noexcept {
  std::uint32_t cleared = 0;
  for (std::uint32_t i = 0; i < max_pins_; ++i) {
    auto& word = pin(id, i);
    if (word.load(std::memory_order_relaxed) == 0) continue;
    word.store(0, std::memory_order_release);
    ++cleared;
  }
  entries_[id].pin_high_water.store(0, std::memory_order_seq_cst);
  return cleared;
}

void ClientTable::free_entry(ClientId id) noexcept {
  clear_pins(id);
  ClientEntry& entry = entries_[id];
  for (std::size_t c = 0; c < kCounters; ++c) {
    // Emptied before it is added: a death between the two loses a count, never doubles one.
    const std::uint64_t value = entry.counters[c].exchange(0, std::memory_order_relaxed);
    root_->departed[c].fetch_add(value, std::memory_order_relaxed);
  }
  entry.state.store(static_cast<std::uint32_t>(ClientState::kFree), std::memory_order_release);
}

bool ClientTable::group_lives(std::uint32_t group, ClientId except) const noexcept {
  const std::uint32_t end = ids_used();
  for (ClientId id = 0; id < end; ++id) {
    if (id != except && state(id) == ClientState::kLive &&
        entries_[id].group.load(std::memory_order_relaxed) == group) {
      return true;
    }
  }
  return false;
}

std::uint64_t ClientTable::total(Counter counter) const noexcept {
  const auto c = static_cast<std::size_t>(counter);
  std::uint64_t sum = root_->departed[c].load(std::memory_order_relaxed);
  const std::uint32_t end = ids_used();
  for (ClientId id = 0; id < end; ++id) {
    sum += entries_[id].counters[c].load(std::memory_order_relaxed);
  }
  return sum;
}

PinAllocator::PinAllocator(const ClientTable* table, ClientId self) : table_(table), self_(self) {
  free_.resize(table->max_pins());
  for (std::uint32_t i = 0; i < table->max_pins(); ++i) free_[i] = table->max_pins() - 1 - i;
}

bool PinAllocator::reserve(std::span<std::uint32_t> out) noexcept {
  const std::lock_guard guard(mutex_);
  if (free_.size() < out.size()) return false;
  std::uint32_t highest = 0;
  for (std::uint32_t& index : out) {
    index = free_.back();
    free_.pop_back();
    highest = std::max(highest, index);
  }
  auto& mark = table_->entry(self_).pin_high_water;
  if (!mutant(Mutant::kHighWaterAfterValidate) && !out.empty() &&
      highest >= mark.load(std::memory_order_relaxed)) {
    mark.store(highest + 1, std::memory_order_seq_cst);
    fault_point(FaultPoint::pin_high_water);
  }
  return true;
}

void PinAllocator::give_back(std::span<const std::uint32_t> indexes) noexcept {
  const std::lock_guard guard(mutex_);
  free_.insert(free_.end(), indexes.begin(), indexes.end());  // capacity was reserved: no throw
}

void PinAllocator::lower_high_water() noexcept {
  constexpr std::uint32_t kWorthIt = 64;
  auto& mark = table_->entry(self_).pin_high_water;
  if (mark.load(std::memory_order_relaxed) < kWorthIt) return;
  const std::lock_guard guard(mutex_);
  const std::uint32_t used = mark.load(std::memory_order_relaxed);
  if (used < kWorthIt || free_.size() != table_->max_pins()) return;
  mark.store(0, std::memory_order_seq_cst);
  // Only indexes below the mark were ever taken; the rest still lies in order beneath them.
  std::sort(free_.end() - used, free_.end(), std::greater<>());
}

std::uint32_t PinAllocator::outstanding() const noexcept {
  const std::lock_guard guard(mutex_);
  return table_->max_pins() - static_cast<std::uint32_t>(free_.size());
}

}  // namespace radixshmem
