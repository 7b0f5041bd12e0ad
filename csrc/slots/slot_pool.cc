// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "slots/slot_pool.h"

#include "base/check.h"

namespace radixshmem {

void SlotPool::init() noexcept {
  for (SlotId slot = 0; slot < size_; ++slot) {
    owners_[slot].store(slot + 1 < size_ ? slot + 2 : 0, std::memory_order_relaxed);
  }
  list().head.store(size_ > 0 ? 1 : 0, std::memory_order_release);
  list().count.store(size_, std::memory_order_release);
}

void SlotPool::rebuild_free_list() noexcept {
  std::uint32_t head = 0;
  std::uint32_t count = 0;
  for (SlotId slot = size_; slot-- > 0;) {
    if (!owner_is_free(owner(slot))) continue;
    owners_[slot].store(head, std::memory_order_release);
    head = slot + 1;
    ++count;
  }
  list().head.store(head, std::memory_order_release);
  list().count.store(count, std::memory_order_release);
}

void SlotPool::take(std::span<SlotId> out, std::uint32_t owner) noexcept {
  UndoLog::Run run(log_, out.size());
  std::uint32_t head = free_head();
  for (SlotId& slot : out) {
    RADIX_CHECK(head != 0 && head <= size_, head);
    slot = head - 1;
    head = owners_[slot].load(std::memory_order_relaxed);
    RADIX_CHECK(owner_is_free(head), head);
    run.add(owners_[slot], head);
  }
  run.finish();
  store_owners(out, owner, FaultPoint::alloc_owner);
  fault_point(FaultPoint::alloc_middle);
  log_->store(list().head, head);
  log_->store(list().count, free_count() - static_cast<std::uint32_t>(out.size()));
}

void SlotPool::store_owners(std::span<const SlotId> slots, std::uint32_t owner,
                            FaultPoint middle) noexcept {
  auto* const owners = owners_;
  for (const SlotId& slot : slots) {
    owners[slot].store(owner, std::memory_order_release);
    if (&slot == slots.data()) fault_point(middle);
  }
}

void SlotPool::log_owners(std::span<const SlotId> slots) noexcept {
  const auto* const owners = owners_;
  UndoLog::Run run(log_, slots.size());
  for (const SlotId slot : slots) run.add(owners[slot]);
  run.finish();
}

void SlotPool::set_owners(std::span<const SlotId> slots, std::uint32_t owner,
                          FaultPoint middle) noexcept {
  log_owners(slots);
  store_owners(slots, owner, middle);
}

std::size_t SlotPool::first_not_of(std::uint32_t owner, std::span<const SlotId> slots,
                                   std::size_t at) const noexcept {
  const auto* const owners = owners_;
  const std::uint32_t size = size_;
  while (at < slots.size() && slots[at] < size &&
         owners[slots[at]].load(std::memory_order_relaxed) == owner) {
    ++at;
  }
  return at;
}

void SlotPool::Freeing::add(std::span<const SlotId> slots, FaultPoint middle) noexcept {
  pool_->log_owners(slots);
  auto* const owners = pool_->owners_;
  std::uint32_t head = head_;
  for (const SlotId& slot : slots) {
    owners[slot].store(head, std::memory_order_release);
    head = slot + 1;
    if (&slot == slots.data()) fault_point(middle);
  }
  head_ = head;
  count_ += static_cast<std::uint32_t>(slots.size());
}

void SlotPool::Freeing::finish() noexcept {
  if (count_ == 0) return;
  pool_->log_->store(pool_->list().head, head_);
  pool_->log_->store(pool_->list().count, pool_->free_count() + count_);
  count_ = 0;
}

}  // namespace radixshmem
