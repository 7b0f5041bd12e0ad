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
  std::uint32_t head = free_head();
  for (std::size_t i = 0; i < out.size(); ++i) {
    RADIX_CHECK(head != 0 && head <= size_, head);
    const SlotId slot = head - 1;
    head = owners_[slot].load(std::memory_order_relaxed);
    RADIX_CHECK(owner_is_free(head), head);
    log_->store(owners_[slot], owner);
    if (i == 0) fault_point(FaultPoint::alloc_owner);
    out[i] = slot;
  }
  fault_point(FaultPoint::alloc_middle);
  log_->store(list().head, head);
  log_->store(list().count, free_count() - static_cast<std::uint32_t>(out.size()));
}

void SlotPool::Freeing::finish() noexcept {
  if (count_ == 0) return;
  pool_->log_->store(pool_->list().head, head_);
  pool_->log_->store(pool_->list().count, pool_->free_count() + count_);
  count_ = 0;
}

}  // namespace radixshmem
