// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What changed in the tree: a ring in shared memory, written by the lock holder, read by any
// process without a lock. KV events and the directory publisher are its consumers.
//
//   entry  hash | parent hash | position:32 | tenant:16 | component:8 | kind:8 | segment      32 B
//
// Order, for a batch of n: reserved = head + n, the entries, head += n (all release). Killed before
// the last: consumers never see the batch, the next writer overwrites it; `reserved` never falls. A
// consumer reads head (acquire), entries below it (acquire), then `reserved`: if that is more than
// a ring ahead of the first entry it read, a writer may have lapped it. Events are published inside
// the transaction that they belong to; an undone transaction raises `overflow` before it restores
// anything, and so does every rebuild: overflow means "forget what you know and resync", for every
// consumer.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/memory_orders.h"
#include "layout/index_plan.h"

namespace radixshmem {

enum class ChangeKind : std::uint8_t { kStored = 0, kRemoved = 1, kCleared = 2 };

struct Change {
  ChangeKind kind{};
  Component component{};
  Position position = 0;
  BlockHash hash = 0;
  BlockHash parent = 0;   // 0 where unknown: removals, and the block at position 0
  SegmentId segment = 0;  // that has or had the block; a hint: it may be another one by now
};

struct RingEntry {
  std::atomic<std::uint64_t> hash;
  std::atomic<std::uint64_t> parent;
  std::atomic<std::uint64_t> what;
  std::atomic<std::uint64_t> segment;
};
static_assert(sizeof(RingEntry) == kRingEntryBytes);

struct RingRoot {
  std::atomic<std::uint64_t> head;      // entries ever published
  std::atomic<std::uint64_t> overflow;  // resyncs ever demanded
  std::atomic<std::uint64_t> reserved;  // entries ever written to, or about to be
};

class ChangeRing final {
 public:
  ChangeRing(RingRoot* root, RingEntry* entries, std::uint32_t count) noexcept
      : root_(root), entries_(entries), mask_(count - 1) {}

  // Writes events behind the head; finish() shows them. Requires: the index lock.
  class Batch final {
   public:
    // Requires: `events` calls of add() at most.
    Batch(ChangeRing* ring, std::uint32_t events) noexcept
        : root_(ring->root_),
          entries_(ring->entries_),
          mask_(ring->mask_),
          next_(root_->head.load(std::memory_order_relaxed)) {
      if (next_ + events <= root_->reserved.load(std::memory_order_relaxed)) return;
      root_->reserved.store(next_ + events, std::memory_order_release);
    }
    void add(const Change& change) noexcept {
      RingEntry& entry = entries_[next_++ & mask_];
      entry.hash.store(change.hash, kRelease);
      entry.parent.store(change.parent, kRelease);
      entry.what.store(std::uint64_t{change.position} << 32 |
                           static_cast<std::uint64_t>(change.component) << 8 |
                           static_cast<std::uint64_t>(change.kind),
                       kRelease);
      entry.segment.store(change.segment, kRelease);
    }
    void finish() noexcept { root_->head.store(next_, std::memory_order_release); }

   private:
    RingRoot* root_;
    RingEntry* entries_;
    std::uint64_t mask_;
    std::uint64_t next_;
  };
  // Requires: the index lock.
  void publish(const Change& change) noexcept;
  // Requires: the index lock.
  void demand_resync() noexcept;

  [[nodiscard]] std::uint64_t head() const noexcept {
    return root_->head.load(std::memory_order_acquire);
  }
  [[nodiscard]] std::uint64_t overflow() const noexcept {
    return root_->overflow.load(std::memory_order_acquire);
  }

  struct Cursor {
    std::uint64_t next = 0;
    std::uint64_t overflow = 0;
  };
  [[nodiscard]] Cursor at_head() const noexcept;
  // Reads up to out.size() changes. Sets `resync` (and moves to the head) when the cursor was
  // lapped or a resync was demanded. Returns: how many were read.
  [[nodiscard]] std::size_t drain(Cursor& cursor, std::span<Change> out,
                                  bool& resync) const noexcept;

 private:
  RingRoot* root_;
  RingEntry* entries_;
  std::uint64_t mask_;
};

}  // namespace radixshmem
