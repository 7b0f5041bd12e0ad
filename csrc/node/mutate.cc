// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Calls of a session that take the index lock. What can be checked or allocated without the lock
// is checked and allocated before it is taken. Hashes and slots are copied first: other threads of
// the caller may write to theirs between the checks and the use, and the index is everybody's.
#include <algorithm>
#include <bit>
#include <vector>

#include "node/call.h"

namespace radixshmem {
namespace {

// Returns: whether a slot id occurs twice (-1 aside): one slot in two entries would be fatal.
bool has_repeats(std::span<const std::int32_t> slots) {
  // Mostly they come as the pool gave them: those of a freed segment, in order or backwards.
  if (std::ranges::adjacent_find(slots, std::ranges::greater_equal{}) == slots.end() ||
      std::ranges::adjacent_find(slots, std::ranges::less_equal{}) == slots.end()) {
    return false;
  }
  // A hash set that is at most half full; 0 = empty.
  std::vector<std::uint32_t> seen(std::bit_ceil(2 * slots.size() + 2));
  const std::size_t mask = seen.size() - 1;
  for (const std::int32_t slot : slots) {
    const std::uint32_t key = static_cast<std::uint32_t>(slot) + 1;
    if (key == 0) continue;
    std::size_t i = (key * 0x9e3779b1u >> 8) & mask;
    while (seen[i] != 0 && seen[i] != key) i = (i + 1) & mask;
    if (seen[i] == key) return true;
    seen[i] = key;
  }
  return false;
}

}  // namespace

Result<InsertOutcome> Session::insert(std::span<const BlockHash> hashes,
                                      std::span<const std::int32_t> given, Position start,
                                      bool auto_recycle, Component component) {
  const Call call(*this);
  if (!call) return refusal(call.code());
  if (auto writable = require_writable("insert"); !writable) return writable.error();
  tree_->prefetch(hashes);
  InsertOutcome outcome;
  const std::size_t n = hashes.size();
  std::vector<std::int32_t> slots(given.begin(), given.end());
  bool fits = tree_->enabled(component) && n <= 0x7fffffff && !has_repeats(slots);
  switch (component) {
    case Component::kFull:
      fits = fits && start <= n && slots.size() <= n - start;
      break;
    case Component::kSwa:
      fits =
          fits && start == 0 && slots.size() <= std::min<std::size_t>(n, plan().swa_window_blocks);
      break;
    case Component::kMamba:
      fits = fits && n > 0 && slots.size() == 1 && (start == 0 || start == n - 1);
      break;
  }
  if (!fits) {
    outcome.error = ErrorCode::BAD_REQUEST;
    return outcome;
  }
  const auto asked = hashes.first(component == Component::kFull ? start + slots.size() : n);
  const std::vector<BlockHash> path(asked.begin(), asked.end());
  const bool done = locked([&] {
    outcome = component == Component::kFull
                  ? tree_->insert(path, std::move(slots), start, group_)
                  : tree_->insert_aux(component, path, std::move(slots), group_);
    if (auto_recycle && !outcome.unused.empty()) tree_->recycle(component, outcome.unused);
  });
  if (!done) outcome.error = ErrorCode::BUSY;
  count(Counter::kInserts, 1);
  count(Counter::kInsertedBlocks, outcome.last - outcome.first);
  return outcome;
}

Result<std::vector<std::int32_t>> Session::allocate(std::int64_t wanted, Component component) {
  const Call call(*this);
  if (!call) return refusal(call.code());
  if (auto writable = require_writable("allocate_slots"); !writable) return writable.error();
  if (auto there = require_component(component); !there) return there.error();
  const std::uint32_t size = tree_->pool(component).size();
  if (wanted < 0 || wanted > size) {
    return Error{ErrorCode::INVALID_ARGUMENT, "cannot allocate " + std::to_string(wanted) +
                                                  " slots: the pool has " + std::to_string(size)};
  }
  static_assert(sizeof(SlotId) == sizeof(std::int32_t));
  std::vector<std::int32_t> slots(static_cast<std::size_t>(wanted));
  if (wanted == 0) return slots;
  std::uint32_t got = 0;
  (void)locked([&] {
    got = tree_->allocate(component,
                          std::span(reinterpret_cast<SlotId*>(slots.data()), slots.size()), self_);
  });
  fault_point(FaultPoint::slots_held);
  slots.resize(got);
  count(Counter::kAllocatedSlots, got);
  return slots;
}

Result<> Session::recycle(std::span<const std::int32_t> given, Component component) {
  const Call call(*this);
  if (!call) return refusal(call.code());
  if (auto writable = require_writable("recycle_slots"); !writable) return writable.error();
  if (auto there = require_component(component); !there) return there.error();
  if (given.empty()) return Unit{};
  const std::vector<std::int32_t> slots(given.begin(), given.end());
  const auto refuse = [&](const std::string& which) {
    return Error{ErrorCode::INVALID_ARGUMENT,
                 which + " (nothing was recycled): recycle what allocate_slots gave, once"};
  };
  if (has_repeats(slots)) return refuse("recycle_slots names a slot twice");
  std::size_t bad = slots.size();
  auto& waiting = deferred_[static_cast<std::size_t>(component)];
  const bool done = locked([&] {
    bad = tree_->first_bad_slot(component, slots, group_, /*gaps=*/false);
    if (bad == slots.size()) tree_->recycle(component, slots);
  });
  if (!done) {
    const std::lock_guard guard(deferred_mutex_);
    bad = tree_->first_bad_slot(component, slots, group_, /*gaps=*/false);
    for (std::size_t i = 0; i < bad; ++i) {
      if (std::find(waiting.begin(), waiting.end(), slots[i]) != waiting.end()) bad = i;
    }
    if (bad == slots.size()) {
      waiting.insert(waiting.end(), slots.begin(), slots.end());
      any_deferred_.store(true, std::memory_order_relaxed);
    }
  }
  if (bad != slots.size()) {
    return refuse("slot " + std::to_string(slots[bad]) +
                  " is not allocated to this client's group");
  }
  count(Counter::kRecycledSlots, slots.size());
  return Unit{};
}

Result<std::uint32_t> Session::evict(std::uint32_t wanted, Component component) {
  const Call call(*this);
  if (!call) return refusal(call.code());
  if (auto writable = require_writable("evict"); !writable) return writable.error();
  if (auto there = require_component(component); !there) return there.error();
  std::uint32_t freed = 0;
  (void)locked([&] {
    freed =
        component == Component::kFull ? tree_->evict(wanted) : tree_->evict_aux(component, wanted);
  });
  return freed;
}

Result<> Session::reset() {
  const Call call(*this);
  if (!call) return refusal(call.code());
  if (auto writable = require_writable("reset"); !writable) return writable.error();
  if (!locked([&] { tree_->reset(); })) return busy_error("reset");
  return Unit{};
}

}  // namespace radixshmem
