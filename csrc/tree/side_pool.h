// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Side blocks: where a segment keeps its SWA and MAMBA slots, if it has any.
//
//   segment | next_free | per aux pool: prev, next, count, in_list, touch, seen     64 B
//   word u64[aux pools][S]     {ver:32, leaving:1, slot + 1:31}; low half 0 = absent
//
// Windows are sparse, so each word is its own commit point: a store to it makes one slot visible.
// A free side block has all words absent (their versions are kept: a reader may hold a stale id).
// A block that loses its last slot is freed in the same transaction. Each aux pool has its own
// eviction list over the side blocks that hold slots of it.
// Who may call: the lock holder; block() and word() anybody, with a bounds-checked id.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "sync/undo_log.h"
#include "tree/control.h"

namespace radixshmem {

struct SideHeader {
  struct Pool {
    std::atomic<std::uint32_t> prev;
    std::atomic<std::uint32_t> next;
    std::atomic<std::uint32_t> count;
    std::atomic<std::uint32_t> in_list;
    std::atomic<std::uint32_t> touch;
    std::atomic<std::uint32_t> seen;
  };
  std::atomic<std::uint32_t> segment;
  std::atomic<std::uint32_t> next_free;
  std::array<Pool, 2> pools;
  std::uint64_t unused;
};
static_assert(sizeof(SideHeader) == kSideHeaderBytes);
static_assert(std::is_standard_layout_v<SideHeader>);

class SidePool final {
 public:
  SidePool(SideRoot* root, std::byte* blocks, std::uint32_t count, std::uint32_t block_bytes,
           std::uint32_t segment_blocks, UndoLog* log) noexcept
      : root_(root),
        blocks_(blocks),
        count_(count),
        block_bytes_(block_bytes),
        segment_blocks_(segment_blocks),
        log_(log) {}

  void init() noexcept;

  [[nodiscard]] std::uint32_t size() const noexcept { return count_; }
  [[nodiscard]] SideHeader& block(SideId id) const noexcept {
    return *reinterpret_cast<SideHeader*>(blocks_ + std::uint64_t{id} * block_bytes_);
  }
  [[nodiscard]] std::atomic<std::uint64_t>& word(SideId id, std::uint32_t pool,
                                                 std::uint32_t entry) const noexcept {
    auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(
        blocks_ + std::uint64_t{id} * block_bytes_ + kSideHeaderBytes);
    return words[pool * segment_blocks_ + entry];
  }
  [[nodiscard]] std::uint32_t free_count() const noexcept {
    return root_->free_count.load(std::memory_order_relaxed);
  }
  [[nodiscard]] SideId free_head() const noexcept {
    return root_->free_head.load(std::memory_order_relaxed);
  }

  // Takes a free block for `segment`. Requires: free_count() > 0.
  [[nodiscard]] SideId pop(SegmentId segment) noexcept;
  // Requires: all words absent, in no list.
  void push(SideId id) noexcept;

  [[nodiscard]] SideId front(std::uint32_t pool) const noexcept {
    return root_->lists[pool].head.load(std::memory_order_relaxed);
  }
  [[nodiscard]] SideId next(SideId id, std::uint32_t pool) const noexcept {
    return block(id).pools[pool].next.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool was_touched(SideId id, std::uint32_t pool) const noexcept;
  void push_back(SideId id, std::uint32_t pool) noexcept;
  void push_front(SideId id, std::uint32_t pool) noexcept;
  void remove(SideId id, std::uint32_t pool) noexcept;
  // Adds `delta` to the number of slots of `pool` that the block holds.
  void add_count(SideId id, std::uint32_t pool, std::int32_t delta) noexcept;
  [[nodiscard]] bool empty(SideId id) const noexcept;

  // Without the log, for reset and rebuild.
  void forget_lists() noexcept;
  void link_back(SideId id, std::uint32_t pool) noexcept;
  void restart_free_list() noexcept;
  void link_free(SideId id) noexcept;

 private:
  SideRoot* root_;
  std::byte* blocks_;
  std::uint32_t count_;
  std::uint32_t block_bytes_;
  std::uint32_t segment_blocks_;
  UndoLog* log_;
};

}  // namespace radixshmem
