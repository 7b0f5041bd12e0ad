// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "arena/page_arena.h"

#include <algorithm>

#include "base/memory_orders.h"

namespace radixshmem {
void PageArena::init() noexcept {
  for (PageId p = 1; p < page_count_; ++p) {
    pages_[p].base_version.store(1, kRelaxed);
    pages_[p].next.store(p + 1 < page_count_ ? p + 1 : 0, kRelaxed);
  }
  root_->free_pages.store(1, kRelaxed);
}

bool PageArena::valid(SegmentId id) const noexcept {
  const PageId p = id / kPageUnits;
  if (p == 0 || p >= page_count_) return false;
  const std::uint32_t c = pages_[p].size_class.load(kRelaxed) & 3;
  const std::uint32_t at = id % kPageUnits;
  return c != 0 && at % classes_.units[c] == 0 && at / classes_.units[c] < classes_.per_page[c];
}

bool PageArena::can_pop(std::uint32_t size_class) const noexcept {
  return root_->open_pages[size_class].load(kRelaxed) != 0 || root_->free_pages.load(kRelaxed) != 0;
}

bool PageArena::can_pop_any() const noexcept {
  return can_pop(1) || can_pop(2) || can_pop(3);
}

void PageArena::open_page(std::uint32_t size_class, PageId id) noexcept {
  PageEntry& page = pages_[id];
  auto& first = root_->open_pages[size_class];
  const PageId next = first.load(kRelaxed);
  log_->store(page.prev, 0);
  log_->store(page.next, next);
  if (next != 0) log_->store(pages_[next].prev, id);
  log_->store(first, id);
  log_->store(page.in_list, 1);
}

void PageArena::close_page(std::uint32_t size_class, PageId id) noexcept {
  PageEntry& page = pages_[id];
  const PageId prev = page.prev.load(kRelaxed);
  const PageId next = page.next.load(kRelaxed);
  log_->store(prev != 0 ? pages_[prev].next : root_->open_pages[size_class], next);
  if (next != 0) log_->store(pages_[next].prev, prev);
  log_->store(page.in_list, 0);
}

void PageArena::format_page(PageId id, std::uint32_t size_class) noexcept {
  const std::uint64_t head =
      SegmentHead{pages_[id].base_version.load(kRelaxed) + 1, SegmentState::kFree, 0, 0}.pack();
  const std::uint32_t units = classes_.units[size_class];
  for (std::uint32_t i = 0; i < classes_.per_page[size_class]; ++i) {
    const SegmentId segment = id * kPageUnits + i * units;
    SegmentHeader* h = header(segment);
    h->head.store(head, kRelease);
    h->start.store(0, kRelaxed);
    h->parent.store(0, kRelaxed);
    h->touch.store(0, kRelaxed);
    h->lru_prev.store(0, kRelaxed);
    h->in_list.store(0, kRelaxed);
    h->seen.store(0, kRelaxed);
    h->size_class.store(static_cast<std::uint8_t>(size_class), kRelaxed);
    h->publish.store(0, kRelaxed);
    h->side.store(0, kRelaxed);
    h->child_count.store(0, kRelaxed);
    h->tenant.store(0, kRelaxed);
    h->priority.store(0, kRelaxed);
    h->flags.store(0, kRelaxed);
    h->expiry.store(0, kRelaxed);
    h->lru_next.store(i + 1 < classes_.per_page[size_class] ? segment + units : 0, kRelease);
  }
}

SegmentId PageArena::pop(std::uint32_t size_class) noexcept {
  auto& open = root_->open_pages[size_class];
  if (open.load(kRelaxed) == 0) {
    const PageId fresh = root_->free_pages.load(kRelaxed);
    PageEntry& page = pages_[fresh];
    if (!mutant(Mutant::kNoArenaSequence)) {
      root_->sequence.store(root_->sequence.load(kRelaxed) + 1, std::memory_order_seq_cst);
    }
    format_page(fresh, size_class);
    fault_point(FaultPoint::segment_page);
    log_->store(root_->free_pages, page.next.load(kRelaxed));
    log_->store(root_->pages_in_use, pages_in_use() + 1);
    log_->store(page.free_head, fresh * kPageUnits);
    log_->store(page.used, 0);
    open_page(size_class, fresh);
    log_->store(page.size_class, size_class);
  }
  const PageId p = open.load(kRelaxed);
  PageEntry& page = pages_[p];
  const SegmentId id = page.free_head.load(kRelaxed);
  log_->store(page.free_head, header(id)->lru_next.load(kRelaxed));
  log_->store(page.used, page.used.load(kRelaxed) + 1);
  if (page.free_head.load(kRelaxed) == 0) close_page(size_class, p);
  fault_point(FaultPoint::segment_pop);
  return id;
}

std::uint64_t PageArena::highest_version(PageId id) const noexcept {
  std::uint64_t highest = pages_[id].base_version.load(kRelaxed);
  for_each_in_page(
      id, [&](SegmentId, Segment segment) { highest = std::max(highest, segment.head().version); });
  return highest;
}

void PageArena::push(SegmentId id) noexcept {
  const PageId p = id / kPageUnits;
  PageEntry& page = pages_[p];
  const std::uint32_t c = page.size_class.load(kRelaxed);
  log_->store(header(id)->lru_next, page.free_head.load(kRelaxed));
  log_->store(page.free_head, id);
  log_->store(page.used, page.used.load(kRelaxed) - 1);
  if (page.in_list.load(kRelaxed) == 0) open_page(c, p);
  fault_point(FaultPoint::evict_free_segment);
  if (page.used.load(kRelaxed) != 0) return;
  close_page(c, p);
  log_->store(page.base_version, highest_version(p));
  log_->store(page.size_class, 0);
  log_->store(page.next, root_->free_pages.load(kRelaxed));
  log_->store(root_->free_pages, p);
  log_->store(root_->pages_in_use, pages_in_use() - 1);
  fault_point(FaultPoint::evict_free_page);
}

bool PageArena::check_page(PageId p, const Complain& complain) const {
  const PageEntry& entry = pages_[p];
  std::uint32_t free = 0;
  for_each_in_page(p, [&](SegmentId, Segment segment) {
    free += segment.head().state == SegmentState::kFree ? 1u : 0u;
  });
  std::uint32_t listed = 0;
  for (SegmentId id = entry.free_head.load(kRelaxed); id != 0 && listed <= kPageUnits;
       id = header(id)->lru_next.load(kRelaxed)) {
    ++listed;
    if (!valid(id) || id / kPageUnits != p) {
      complain("free list leaves the page", p);
      break;
    }
    if (segment(id).head().state != SegmentState::kFree) {
      complain("free list holds a used segment", p);
    }
  }
  const std::uint32_t all = classes_.per_page[entry.size_class.load(kRelaxed) & 3];
  if (free != listed) complain("free segments are not all listed", p);
  if (free + entry.used.load(kRelaxed) != all) complain("used count is wrong", p);
  if (free == all) complain("empty page keeps its class", p);
  if ((entry.in_list.load(kRelaxed) != 0) != (free != 0)) complain("wrong list membership", p);
  return free != 0;
}

void PageArena::check_pages(const Complain& complain) const {
  std::uint32_t in_use = 0;
  std::uint32_t open = 0;
  for (PageId p = 1; p < page_count_; ++p) {
    if (pages_[p].size_class.load(kRelaxed) == 0) continue;
    ++in_use;
    open += check_page(p, complain) ? 1u : 0u;
  }
  const auto list_length = [&](PageId first, std::uint32_t size_class, const char* wrong) {
    std::uint32_t length = 0;
    for (PageId p = first; p != 0 && length <= page_count_; p = pages_[p].next.load(kRelaxed)) {
      ++length;
      if (p >= page_count_) {
        complain("is in a list and does not exist", p);
        break;
      }
      if (pages_[p].size_class.load(kRelaxed) != size_class) complain(wrong, p);
    }
    return length;
  };
  std::uint32_t listed = 0;
  for (std::uint32_t c = 1; c < kSizeClasses; ++c) {
    listed +=
        list_length(root_->open_pages[c].load(kRelaxed), c, "is in the list of another class");
  }
  if (listed != open) complain("open pages and their lists differ in number", listed);
  const std::uint32_t free_pages =
      list_length(root_->free_pages.load(kRelaxed), 0, "is free and has a class");
  if (free_pages + in_use != page_count_ - 1) complain("pages are lost", free_pages);
  if (in_use != pages_in_use()) complain("pages in use are miscounted", in_use);
}

void PageArena::rebuild() noexcept {
  std::uint32_t in_use = 0;
  root_->free_pages.store(0, kRelease);
  for (auto& open : root_->open_pages) open.store(0, kRelease);
  for (PageId p = page_count_ - 1; p >= 1; --p) {
    PageEntry& page = pages_[p];
    const std::uint32_t c = page.size_class.load(kRelaxed) & 3;
    page.size_class.store(c, kRelease);
    std::uint32_t used = 0;
    SegmentId free_head = 0;
    for_each_in_page(p, [&](SegmentId id, Segment segment) {
      if (segment.head().state != SegmentState::kFree) {
        ++used;
        return;
      }
      segment->lru_next.store(free_head, kRelease);
      free_head = id;
    });
    page.used.store(used, kRelease);
    page.free_head.store(free_head, kRelease);
    page.in_list.store(0, kRelease);
    if (c != 0 && used == 0) {
      page.base_version.store(highest_version(p), kRelease);
      page.size_class.store(0, kRelease);
    }
    if (used == 0) {
      page.next.store(root_->free_pages.load(kRelaxed), kRelease);
      root_->free_pages.store(p, kRelease);
      continue;
    }
    ++in_use;
    if (free_head == 0) continue;
    const PageId next = root_->open_pages[c].load(kRelaxed);
    page.prev.store(0, kRelease);
    page.next.store(next, kRelease);
    if (next != 0) pages_[next].prev.store(p, kRelease);
    root_->open_pages[c].store(p, kRelease);
    page.in_list.store(1, kRelease);
  }
  root_->pages_in_use.store(in_use, kRelease);
}

}  // namespace radixshmem
