// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tree/side_pool.h"

#include "base/memory_orders.h"

namespace radixshmem {
void SidePool::init() noexcept {
  restart_free_list();
  for (SideId id = count_; id-- > 1;) link_free(id);
}

SideId SidePool::pop(SegmentId segment) noexcept {
  const SideId id = free_head();
  SideHeader& side = block(id);
  log_->store(root_->free_head, side.next_free.load(kRelaxed));
  log_->store(root_->free_count, free_count() - 1);
  log_->store(side.segment, segment);
  return id;
}

void SidePool::push(SideId id) noexcept {
  SideHeader& side = block(id);
  log_->store(side.segment, 0);
  log_->store(side.next_free, free_head());
  log_->store(root_->free_head, id);
  log_->store(root_->free_count, free_count() + 1);
}

bool SidePool::was_touched(SideId id, std::uint32_t pool) const noexcept {
  const SideHeader::Pool& links = block(id).pools[pool];
  return links.touch.load(kRelaxed) != links.seen.load(kRelaxed);
}

void SidePool::push_back(SideId id, std::uint32_t pool) noexcept {
  SideHeader::Pool& links = block(id).pools[pool];
  if (links.in_list.load(kRelaxed) != 0) return;
  ListRoot& list = root_->lists[pool];
  const SideId tail = list.tail.load(kRelaxed);
  log_->store(links.next, 0);
  log_->store(links.prev, tail);
  log_->store(tail != 0 ? block(tail).pools[pool].next : list.head, id);
  log_->store(list.tail, id);
  log_->store(links.in_list, 1);
  links.seen.store(links.touch.load(kRelaxed), kRelease);
}

void SidePool::push_front(SideId id, std::uint32_t pool) noexcept {
  SideHeader::Pool& links = block(id).pools[pool];
  if (links.in_list.load(kRelaxed) != 0) return;
  ListRoot& list = root_->lists[pool];
  const SideId head = list.head.load(kRelaxed);
  log_->store(links.prev, 0);
  log_->store(links.next, head);
  log_->store(head != 0 ? block(head).pools[pool].prev : list.tail, id);
  log_->store(list.head, id);
  log_->store(links.in_list, 1);
  links.seen.store(links.touch.load(kRelaxed), kRelease);
}

void SidePool::remove(SideId id, std::uint32_t pool) noexcept {
  SideHeader::Pool& links = block(id).pools[pool];
  if (links.in_list.load(kRelaxed) == 0) return;
  ListRoot& list = root_->lists[pool];
  const SideId prev = links.prev.load(kRelaxed);
  const SideId next = links.next.load(kRelaxed);
  log_->store(prev != 0 ? block(prev).pools[pool].next : list.head, next);
  log_->store(next != 0 ? block(next).pools[pool].prev : list.tail, prev);
  log_->store(links.in_list, 0);
}

void SidePool::add_count(SideId id, std::uint32_t pool, std::int32_t delta) noexcept {
  auto& count = block(id).pools[pool].count;
  log_->store(count, count.load(kRelaxed) + static_cast<std::uint32_t>(delta));
}

bool SidePool::empty(SideId id) const noexcept {
  const SideHeader& side = block(id);
  return side.pools[0].count.load(kRelaxed) == 0 && side.pools[1].count.load(kRelaxed) == 0;
}

void SidePool::forget_lists() noexcept {
  for (ListRoot& list : root_->lists) {
    list.head.store(0, kRelease);
    list.tail.store(0, kRelease);
  }
}

void SidePool::link_back(SideId id, std::uint32_t pool) noexcept {
  SideHeader::Pool& links = block(id).pools[pool];
  ListRoot& list = root_->lists[pool];
  const SideId tail = list.tail.load(kRelaxed);
  links.next.store(0, kRelease);
  links.prev.store(tail, kRelease);
  (tail != 0 ? block(tail).pools[pool].next : list.head).store(id, kRelease);
  list.tail.store(id, kRelease);
  links.in_list.store(1, kRelease);
  links.seen.store(links.touch.load(kRelaxed), kRelease);
}

void SidePool::restart_free_list() noexcept {
  root_->free_head.store(0, kRelease);
  root_->free_count.store(0, kRelease);
}

void SidePool::link_free(SideId id) noexcept {
  SideHeader& side = block(id);
  side.segment.store(0, kRelease);
  side.next_free.store(free_head(), kRelease);
  root_->free_head.store(id, kRelease);
  root_->free_count.store(free_count() + 1, kRelease);
}

}  // namespace radixshmem
