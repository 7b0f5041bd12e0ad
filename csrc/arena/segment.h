// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// A segment: a run of at most S consecutive blocks of one path, the node of the tree.
//
//   0   head u64             layout/words.h; the store to it is the commit of an insert
//   8   start | parent | touch | lru_prev | lru_next        u32 each
//   28  in_list | seen | size_class | publish               u8 each
//   32  side | child_count                                  u32 each
//   40  tenant u16 | priority u8 | flags u8 | expiry u32    spare, all 0
//   48  hash u64[capacity]   slot u32[capacity] (as pairs in a u64)   branch u16[capacity]
//
// Class 1 (one entry) has no branch array, child_count serves, and is exactly 64 bytes; class 3
// with S = 64 has 944 bytes in 960. A segment never moves, never splits and never changes its
// class until it is free; a branch inside it is a further segment, a child.
//   start        block position of entry 0; [start, start + count) never crosses a multiple of S
//   parent       the segment that holds block start - 1; 0 <=> start == 0
//   branch[i]    children that start at start + i + 1 (sticky at 65535 while there are children)
//   touch        eviction clock at the last hit; `seen` its low byte when put into the list
//   in_list      0 no list, 1 the eviction list, 2 the list of zombies
//
// Every word is atomic: when a page changes its class, a reader with a stale id may load any of
// them as something else. It notices by the version of the head and the arena sequence.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/ids.h"
#include "layout/index_plan.h"
#include "layout/words.h"

namespace radixshmem {

struct SegmentHeader {
  std::atomic<std::uint64_t> head;
  std::atomic<std::uint32_t> start;
  std::atomic<std::uint32_t> parent;
  std::atomic<std::uint32_t> touch;
  std::atomic<std::uint32_t> lru_prev;
  std::atomic<std::uint32_t> lru_next;
  std::atomic<std::uint8_t> in_list;
  std::atomic<std::uint8_t> seen;
  std::atomic<std::uint8_t> size_class;
  std::atomic<std::uint8_t> publish;
  std::atomic<std::uint32_t> side;
  std::atomic<std::uint32_t> child_count;
  std::atomic<std::uint16_t> tenant;
  std::atomic<std::uint8_t> priority;
  std::atomic<std::uint8_t> flags;
  std::atomic<std::uint32_t> expiry;
};
static_assert(sizeof(SegmentHeader) == kSegmentHeaderBytes);
static_assert(std::is_standard_layout_v<SegmentHeader>);
static_assert(offsetof(SegmentHeader, in_list) == 28 && offsetof(SegmentHeader, tenant) == 40);

enum class InList : std::uint8_t { kNone = 0, kEviction = 1, kZombies = 2 };

// A segment together with its capacity. Cheap to copy; valid as long as the mapping.
class Segment final {
 public:
  Segment(SegmentHeader* header, std::uint32_t capacity) noexcept
      : header_(header), capacity_(capacity) {}

  [[nodiscard]] SegmentHeader* operator->() const noexcept { return header_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }

  [[nodiscard]] std::uint64_t head_word() const noexcept {
    return header_->head.load(std::memory_order_acquire);
  }
  [[nodiscard]] SegmentHead head() const noexcept { return SegmentHead::unpack(head_word()); }
  [[nodiscard]] Position start() const noexcept {
    return header_->start.load(std::memory_order_relaxed);
  }
  [[nodiscard]] SegmentId parent() const noexcept {
    return header_->parent.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint32_t children() const noexcept {
    return header_->child_count.load(std::memory_order_relaxed);
  }

  [[nodiscard]] std::atomic<std::uint64_t>* hashes() const noexcept {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(header_ + 1);
  }
  [[nodiscard]] BlockHash hash(std::uint32_t i) const noexcept {
    return hashes()[i].load(std::memory_order_acquire);
  }
  [[nodiscard]] std::atomic<std::uint64_t>* slot_pairs() const noexcept {
    return hashes() + capacity_;
  }
  [[nodiscard]] SlotId slot(std::uint32_t i) const noexcept {
    const std::uint64_t pair = slot_pairs()[i / 2].load(std::memory_order_relaxed);
    return static_cast<SlotId>(i % 2 == 0 ? pair : pair >> 32);
  }
  // Writes the hashes of entries from `first` on. Requires: the lock.
  void set_hashes(std::uint32_t first, std::span<const BlockHash> run) const noexcept {
    std::atomic<std::uint64_t>* at = hashes() + first;
    for (const BlockHash hash : run) (at++)->store(hash, std::memory_order_release);
  }
  // Writes the slots of entries from `first` on. Requires: the lock.
  void set_slots(std::uint32_t first, std::span<const SlotId> run) const noexcept {
    std::size_t i = 0;
    if (first % 2 != 0 && !run.empty()) set_slot(first, run[i++]);
    std::atomic<std::uint64_t>* pair = slot_pairs() + (first + 1) / 2;
    for (; i + 1 < run.size(); i += 2) {
      (pair++)->store(run[i] | std::uint64_t{run[i + 1]} << 32, std::memory_order_release);
    }
    if (i < run.size()) set_slot(first + static_cast<std::uint32_t>(i), run[i]);
  }
  // Copies the slots of entries from `first` on.
  void read_slots(std::uint32_t first, std::span<std::int32_t> out) const noexcept {
    const std::atomic<std::uint64_t>* pair = slot_pairs() + first / 2;
    std::int32_t* to = out.data();
    std::int32_t* const end = to + out.size();
    if (first % 2 != 0 && to != end) {
      *to++ = static_cast<std::int32_t>((pair++)->load(std::memory_order_acquire) >> 32);
    }
    for (; end - to >= 2; to += 2) {
      const std::uint64_t both = (pair++)->load(std::memory_order_acquire);
      std::memcpy(to, &both, sizeof both);
    }
    if (to != end) *to = static_cast<std::int32_t>(pair->load(std::memory_order_acquire));
  }
  // Asks for all of it ahead of use.
  void prefetch() const noexcept {
    const auto* bytes = reinterpret_cast<const char*>(header_);
    const std::size_t size = sizeof(SegmentHeader) + std::size_t{12} * capacity_;
    for (std::size_t at = 0; at < size; at += kCacheLine) __builtin_prefetch(bytes + at);
  }
  // Requires: the lock.
  void set_slot(std::uint32_t i, SlotId slot) const noexcept {
    auto& word = slot_pairs()[i / 2];
    const std::uint64_t pair = word.load(std::memory_order_relaxed);
    word.store(i % 2 == 0 ? (pair & 0xffffffff00000000u) | slot
                          : (pair & 0xffffffffu) | std::uint64_t{slot} << 32,
               std::memory_order_release);
  }

  // Requires: capacity() > 1.
  [[nodiscard]] std::atomic<std::uint16_t>* branches() const noexcept {
    return reinterpret_cast<std::atomic<std::uint16_t>*>(slot_pairs() + (capacity_ + 1) / 2);
  }
  [[nodiscard]] std::uint32_t branch(std::uint32_t i) const noexcept {
    return capacity_ == 1 ? children() : branches()[i].load(std::memory_order_relaxed);
  }
  // Forgets all children. Requires: the lock.
  void clear_branches() const noexcept {
    header_->child_count.store(0, std::memory_order_release);
    if (capacity_ == 1) return;
    // Four counts at a time: capacities above 1 are multiples of 8.
    std::atomic<std::uint64_t>* four = slot_pairs() + capacity_ / 2;
    for (std::uint32_t i = 0; i < capacity_; i += 4) {
      (four++)->store(0, std::memory_order_relaxed);
    }
  }
  // Returns: how many leading entries carry children and therefore cannot be cut off.
  [[nodiscard]] std::uint32_t floor() const noexcept {
    if (children() == 0) return 0;
    for (std::uint32_t i = capacity_; i > 0; --i) {
      if (branch(i - 1) != 0) return i;
    }
    return 0;
  }

 private:
  SegmentHeader* header_;
  std::uint32_t capacity_;
};

}  // namespace radixshmem
