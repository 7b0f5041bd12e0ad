// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Where segments live: 64 KiB pages, each cut into segments of one size class, given to another
// class when empty, never back to the system.
//
//   page entry   size_class | used | free_head | prev | next | in_list | base_version      32 B
//   lists        one of free pages; one per class of pages with a free segment
//
// Segment id = offset / 64, so page = id / 1024; page 0 is not used and id 0 means "none".
// The class of a page is a primary word, like heads and owner words; lists and counts are derived.
//
// Changing the class is the one place where old segment words are read as something else. A slot
// pair read as a head would be a plausible version, so: an empty page notes the highest version of
// its heads in base_version; giving it away first raises the arena sequence (seq_cst), then writes
// all new heads with base_version + 1, then links it, then sets the class. A reader that saw the
// sequence change begins again.
// Who may call: the lock holder; segment(), valid() and the sequence anybody.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <type_traits>

#include "arena/segment.h"
#include "layout/index_plan.h"
#include "sync/undo_log.h"

namespace radixshmem {

struct PageEntry {
  std::atomic<std::uint32_t> size_class;  // 0 = free
  std::atomic<std::uint32_t> used;
  std::atomic<std::uint32_t> free_head;  // first free segment
  std::atomic<std::uint32_t> prev;
  std::atomic<std::uint32_t> next;
  std::atomic<std::uint32_t> in_list;
  std::atomic<std::uint64_t> base_version;
};
static_assert(sizeof(PageEntry) == kPageEntryBytes);
static_assert(std::is_standard_layout_v<PageEntry>);

struct ArenaRoot {
  alignas(kCacheLine) std::atomic<std::uint64_t> sequence;
  alignas(kCacheLine) std::atomic<std::uint32_t> free_pages;  // list head
  std::atomic<std::uint32_t> open_pages[kSizeClasses];        // pages with a free segment, by class
  std::atomic<std::uint32_t> pages_in_use;
};

class PageArena final {
 public:
  PageArena(ArenaRoot* root, PageEntry* pages, std::byte* arena, std::uint32_t page_count,
            const ClassTable& classes, UndoLog* log) noexcept
      : root_(root),
        pages_(pages),
        arena_(arena),
        page_count_(page_count),
        classes_(classes),
        log_(log) {}

  // Makes every page free. Requires: a zeroed region nobody else sees.
  void init() noexcept;

  [[nodiscard]] const ClassTable& classes() const noexcept { return classes_; }
  [[nodiscard]] std::uint32_t units() const noexcept { return page_count_ * kPageUnits; }
  [[nodiscard]] PageEntry& page(PageId id) const noexcept { return pages_[id]; }
  [[nodiscard]] std::uint32_t pages_in_use() const noexcept {
    return root_->pages_in_use.load(std::memory_order_relaxed);
  }

  [[nodiscard]] SegmentHeader* header(SegmentId id) const noexcept {
    return reinterpret_cast<SegmentHeader*>(arena_ + std::uint64_t{id} * kUnitBytes);
  }
  // Returns: the segment with the capacity its own header tells. For a stale id that is garbage,
  // bounded by S; `id` must be below units().
  [[nodiscard]] Segment segment(SegmentId id) const noexcept {
    SegmentHeader* h = header(id);
    return {h, classes_.capacity[h->size_class.load(std::memory_order_relaxed) & 3]};
  }
  // Returns: the class of the page that `id` lies in.
  [[nodiscard]] std::uint32_t class_of(SegmentId id) const noexcept {
    return pages_[id / kPageUnits].size_class.load(std::memory_order_relaxed) & 3;
  }
  // Returns: whether `id` is where a segment of its page's class begins.
  [[nodiscard]] bool valid(SegmentId id) const noexcept;
  [[nodiscard]] std::uint64_t sequence(std::memory_order order) const noexcept {
    return root_->sequence.load(order);
  }

  // Returns: whether pop() of this class would succeed.
  [[nodiscard]] bool can_pop(std::uint32_t size_class) const noexcept;
  [[nodiscard]] bool can_pop_any() const noexcept;
  // Takes a free segment: state FREE, all fields but the head 0. Requires: can_pop(size_class).
  [[nodiscard]] SegmentId pop(std::uint32_t size_class) noexcept;
  // Gives a segment back. Requires: its head is FREE and nothing refers to it.
  void push(SegmentId id) noexcept;

  // Calls visit(id, Segment) for every segment of every page that has a class.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (PageId p = 1; p < page_count_; ++p) for_each_in_page(p, visit);
  }
  template <typename Visit>
  void for_each_in_page(PageId p, Visit visit) const {
    const std::uint32_t c = pages_[p].size_class.load(std::memory_order_relaxed) & 3;
    for (std::uint32_t i = 0; i < classes_.per_page[c]; ++i) {
      const SegmentId id = p * kPageUnits + i * classes_.units[c];
      visit(id, Segment(header(id), classes_.capacity[c]));
    }
  }

  // Calls complain(what, page) for every page whose lists and counts do not agree; of a wrong total
  // with the number found in the place of the page.
  using Complain = std::function<void(const char*, PageId)>;
  void check_pages(const Complain& complain) const;

  // Recomputes lists, counts and free lists from classes and heads, without the log.
  void rebuild() noexcept;

 private:
  void open_page(std::uint32_t size_class, PageId id) noexcept;
  void close_page(std::uint32_t size_class, PageId id) noexcept;
  void format_page(PageId id, std::uint32_t size_class) noexcept;
  [[nodiscard]] std::uint64_t highest_version(PageId id) const noexcept;
  // Requires: the page has a class. Returns: whether it has a free segment.
  bool check_page(PageId p, const Complain& complain) const;

  ArenaRoot* root_;
  PageEntry* pages_;
  std::byte* arena_;
  std::uint32_t page_count_;
  ClassTable classes_;
  UndoLog* log_;
};

}  // namespace radixshmem
