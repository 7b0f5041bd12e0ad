// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Which segment to cut next: a list of the segments that have entries beyond their floor, the
// least recently used first. Readers do not move anything; they store the eviction clock in
// `touch`. A segment whose touch differs from what it was when it was queued gets a second chance
// at the tail (the CLOCK approximation of LRU), so finding a victim never scans the leaves.
// What is left of a victim that was cut in part stays in front: nobody has used it since.
// This is the whole policy interface: push_back, push_front, remove, front, was_touched.
// Who may call: the lock holder. Links are derived; changes are logged.
#pragma once

#include "arena/page_arena.h"
#include "tree/control.h"

namespace radixshmem {

class EvictionList final {
 public:
  EvictionList(ListRoot* root, PageArena* arena, UndoLog* log) noexcept
      : root_(root), arena_(arena), log_(log) {}

  [[nodiscard]] SegmentId front() const noexcept {
    return root_->head.load(std::memory_order_relaxed);
  }
  [[nodiscard]] SegmentId next(SegmentId id) const noexcept {
    return arena_->header(id)->lru_next.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool was_touched(SegmentId id) const noexcept;
  // No-op when it is queued already.
  void push_back(SegmentId id) noexcept;
  void push_front(SegmentId id) noexcept;
  // No-op when it is not queued.
  void remove(SegmentId id) noexcept;

  // Without the log, for the rebuild: links `id` (in no list) at the tail.
  void link_back(SegmentId id) noexcept;
  void forget_all() noexcept;

 private:
  ListRoot* root_;
  PageArena* arena_;
  UndoLog* log_;
};

}  // namespace radixshmem
