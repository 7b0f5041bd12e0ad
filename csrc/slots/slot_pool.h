// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Who owns each slot of one pool: an owner word per slot, free slots threaded through the words.
//
//   owner u32   < 0x40000000  free; the value is the next free slot + 1 (0 = end)
//               0x40000000 | id + 1   a client       0xffffffff  an entry of the tree
//               0xfffffffe  quarantine               0xfffffffd  staging of the server
//
// Free lists are an array, one per NUMA node later; today there is one.
// Who may call: the lock holder; owner() and free_count() anybody, as hints.
// All changes are logged, runs of slots as a whole before the first of their words changes; none
// becomes visible to other lock holders before the commit.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "layout/words.h"
#include "sync/undo_log.h"

namespace radixshmem {

inline constexpr std::size_t kMaxFreeLists = 8;

struct SlotPoolRoot {
  struct FreeList {
    std::atomic<std::uint32_t> head;  // slot + 1
    std::atomic<std::uint32_t> count;
  };
  std::array<FreeList, kMaxFreeLists> lists;
};

class SlotPool final {
 public:
  SlotPool(SlotPoolRoot* root, std::atomic<std::uint32_t>* owners, std::uint32_t size,
           UndoLog* log) noexcept
      : root_(root), owners_(owners), size_(size), log_(log) {}

  // Makes every slot free. Requires: a zeroed region nobody else sees.
  void init() noexcept;

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint32_t free_count() const noexcept {
    return list().count.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint32_t free_head() const noexcept {
    return list().head.load(std::memory_order_relaxed);
  }
  // Requires: slot < size().
  [[nodiscard]] std::uint32_t owner(SlotId slot) const noexcept {
    return owners_[slot].load(std::memory_order_relaxed);
  }
  void set_owner(SlotId slot, std::uint32_t owner) noexcept { log_->store(owners_[slot], owner); }
  // `middle` fires when the first of them is set.
  void set_owners(std::span<const SlotId> slots, std::uint32_t owner, FaultPoint middle) noexcept;
  // Returns: the index of the first slot from `at` on that is out of range or not `owner`'s;
  // slots.size() when there is none.
  [[nodiscard]] std::size_t first_not_of(std::uint32_t owner, std::span<const SlotId> slots,
                                         std::size_t at) const noexcept;
  // Without the log: for recovery, which is run again if it dies.
  void restore_owner(SlotId slot, std::uint32_t owner) noexcept {
    owners_[slot].store(owner, std::memory_order_release);
  }
  // Recomputes the free list from the owner words (every word below kOwnedBase is free).
  void rebuild_free_list() noexcept;

  // Moves out.size() free slots to `owner`. Requires: out.size() <= free_count().
  void take(std::span<SlotId> out, std::uint32_t owner) noexcept;

  // Collects slots to free in one transaction: n slots cost n + 2 log entries.
  class Freeing final {
   public:
    explicit Freeing(SlotPool* pool) noexcept : pool_(pool), head_(pool->free_head()) {}
    void add(SlotId slot) noexcept {
      pool_->log_->store(pool_->owners_[slot], head_);
      head_ = slot + 1;
      ++count_;
    }
    // `middle` fires when the first of them is free.
    void add(std::span<const SlotId> slots, FaultPoint middle) noexcept;
    void finish() noexcept;
    [[nodiscard]] std::uint32_t count() const noexcept { return count_; }

   private:
    SlotPool* pool_;
    std::uint32_t head_;
    std::uint32_t count_ = 0;
  };

 private:
  [[nodiscard]] SlotPoolRoot::FreeList& list() const noexcept { return root_->lists[0]; }
  void log_owners(std::span<const SlotId> slots) noexcept;
  // Requires: they are logged.
  void store_owners(std::span<const SlotId> slots, std::uint32_t owner, FaultPoint middle) noexcept;

  SlotPoolRoot* root_;
  std::atomic<std::uint32_t>* owners_;
  std::uint32_t size_;
  UndoLog* log_;
};

}  // namespace radixshmem
