// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tree/eviction_list.h"

#include "base/memory_orders.h"

namespace radixshmem {
namespace {
constexpr auto kQueued = static_cast<std::uint8_t>(InList::kEviction);
constexpr auto kNotQueued = static_cast<std::uint8_t>(InList::kNone);
}  // namespace

bool EvictionList::was_touched(SegmentId id) const noexcept {
  const SegmentHeader* h = arena_->header(id);
  return static_cast<std::uint8_t>(h->touch.load(kRelaxed)) != h->seen.load(kRelaxed);
}

void EvictionList::push_back(SegmentId id) noexcept {
  SegmentHeader* h = arena_->header(id);
  if (h->in_list.load(kRelaxed) != kNotQueued) return;
  const SegmentId tail = root_->tail.load(kRelaxed);
  log_->store(h->lru_next, 0);
  log_->store(h->lru_prev, tail);
  log_->store(tail != 0 ? arena_->header(tail)->lru_next : root_->head, id);
  log_->store(root_->tail, id);
  log_->store(h->in_list, kQueued);
  h->seen.store(static_cast<std::uint8_t>(h->touch.load(kRelaxed)), kRelease);
}

void EvictionList::push_front(SegmentId id) noexcept {
  SegmentHeader* h = arena_->header(id);
  if (h->in_list.load(kRelaxed) != kNotQueued) return;
  const SegmentId head = root_->head.load(kRelaxed);
  log_->store(h->lru_prev, 0);
  log_->store(h->lru_next, head);
  log_->store(head != 0 ? arena_->header(head)->lru_prev : root_->tail, id);
  log_->store(root_->head, id);
  log_->store(h->in_list, kQueued);
  h->seen.store(static_cast<std::uint8_t>(h->touch.load(kRelaxed)), kRelease);
}

void EvictionList::remove(SegmentId id) noexcept {
  SegmentHeader* h = arena_->header(id);
  if (h->in_list.load(kRelaxed) != kQueued) return;
  const SegmentId prev = h->lru_prev.load(kRelaxed);
  const SegmentId next = h->lru_next.load(kRelaxed);
  log_->store(prev != 0 ? arena_->header(prev)->lru_next : root_->head, next);
  log_->store(next != 0 ? arena_->header(next)->lru_prev : root_->tail, prev);
  log_->store(h->in_list, kNotQueued);
}

void EvictionList::link_back(SegmentId id) noexcept {
  SegmentHeader* h = arena_->header(id);
  const SegmentId tail = root_->tail.load(kRelaxed);
  h->lru_next.store(0, kRelease);
  h->lru_prev.store(tail, kRelease);
  (tail != 0 ? arena_->header(tail)->lru_next : root_->head).store(id, kRelease);
  root_->tail.store(id, kRelease);
  h->in_list.store(kQueued, kRelease);
  h->seen.store(static_cast<std::uint8_t>(h->touch.load(kRelaxed)), kRelease);
}

void EvictionList::forget_all() noexcept {
  root_->head.store(0, kRelease);
  root_->tail.store(0, kRelease);
}

}  // namespace radixshmem
