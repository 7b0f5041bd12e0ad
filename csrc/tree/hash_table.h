// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The one table: hash of a segment's first block -> segment.
//
//   line   8 entries of u64 {tag:32, segment:32}, one cache line; two lines per key, both in the
//          same 4 KiB page: a cold probe costs one TLB miss
//
// One-word entries are never torn. An entry is only a hint: whoever follows it verifies that the
// segment is LIVE, starts at the wanted position and begins with the wanted hash. So the same hash
// at two positions has two entries, and hash value 0 is legal (an entry with segment 0 is empty).
// Inserts fill a key's first line before its second (so that a probe mostly needs one line), move
// one entry to its other line when both are full, then walk at random, bounded. While an entry is
// moving `sequence` is odd: a reader that misses then, or across a change of it, looks again.
// Growth doubles the lines in place (line l splits into l and l + old count), under
// intent = REBUILD: a death inside it is healed by the full rebuild, since the table is derived.
#pragma once

#include <atomic>
#include <cstdint>

#include "arena/page_arena.h"
#include "tree/control.h"

namespace radixshmem {

struct alignas(kCacheLine) TableLine {
  std::atomic<std::uint64_t> entry[8];
};
static_assert(sizeof(TableLine) == kCacheLine);

// Where a key may lie in a table, also in that of a peer.
struct TableProbe {
  std::uint32_t tag;
  std::uint32_t line[2];
};
// Requires: `mask` + 1 is the number of lines, a power of two.
[[nodiscard]] constexpr TableProbe table_probe(BlockHash key, std::uint32_t mask) noexcept {
  constexpr std::uint32_t kPageLineMask = 4096 / kCacheLine - 1;
  const std::uint64_t mixed = mix_hash(key);
  const auto first = static_cast<std::uint32_t>(mixed);
  const auto other = static_cast<std::uint32_t>(mixed >> 32);
  const std::uint32_t second = (first & ~kPageLineMask) | (other & kPageLineMask);
  return {other, {first & mask, second & mask}};
}

class HashTable final {
 public:
  HashTable(TableRoot* root, TableLine* lines, std::uint32_t max_lines, PageArena* arena,
            UndoLog* log, WorkCounters* work) noexcept
      : root_(root), lines_(lines), max_lines_(max_lines), arena_(arena), log_(log), work_(work) {}

  using Probe = TableProbe;
  [[nodiscard]] Probe probe(BlockHash key) const noexcept {
    return table_probe(key, line_mask(std::memory_order_acquire));
  }
  [[nodiscard]] const TableLine& line(std::uint32_t index) const noexcept { return lines_[index]; }
  [[nodiscard]] std::uint32_t lines_in_use() const noexcept {
    return line_mask(std::memory_order_relaxed) + 1;
  }
  void set_lines_in_use(std::uint32_t lines) noexcept {
    root_->line_mask.store(lines - 1, std::memory_order_release);
  }
  [[nodiscard]] std::uint32_t sequence(std::memory_order order) const noexcept {
    return root_->sequence.load(order);
  }
  void begin_move() noexcept {
    root_->sequence.store(root_->sequence.load(std::memory_order_relaxed) | 1,
                          std::memory_order_seq_cst);
  }
  void end_move() noexcept {
    // Not "add one twice": a death between the two would leave the parity inverted for ever.
    root_->sequence.store((root_->sequence.load(std::memory_order_relaxed) | 1) + 1,
                          std::memory_order_seq_cst);
  }

  void prefetch(BlockHash key) const noexcept { __builtin_prefetch(&lines_[probe(key).line[0]]); }
  // Returns: a segment of the first line whose tag fits, without looking at it; 0 if none, and
  // then the second line is on its way. For prefetching.
  [[nodiscard]] SegmentId peek(BlockHash key) const noexcept;

  // Calls visit(SegmentId) for entries whose tag fits until it returns true.
  template <typename Visit>
  bool for_each_candidate(BlockHash key, Visit visit) const noexcept {
    const Probe p = probe(key);
    for (const std::uint32_t l : p.line) {
      for (const auto& entry : lines_[l].entry) {
        const std::uint64_t word = entry.load(std::memory_order_acquire);
        if (static_cast<std::uint32_t>(word >> 32) != p.tag || word == 0) continue;
        if (visit(static_cast<SegmentId>(word))) return true;
      }
    }
    return false;
  }

  // The rest requires the lock.
  // Returns: the LIVE segment that starts at `start` with `key`; 0 if none.
  [[nodiscard]] SegmentId find(BlockHash key, Position start) const noexcept;
  // Requires: the segment's hash(0) == key. Returns: false when no place could be made (what was
  // moved stays in the log for the caller to undo).
  [[nodiscard]] bool insert(BlockHash key, SegmentId segment, bool logged) noexcept;
  void erase(BlockHash key, SegmentId segment) noexcept;
  // Returns: whether `segments` entries want more lines and there are more.
  [[nodiscard]] bool wants_growth(std::uint32_t segments) const noexcept {
    return std::uint64_t{segments} * 5 >= std::uint64_t{lines_in_use()} * 8 * 4 &&
           lines_in_use() < max_lines_;
  }
  // Requires: intent REBUILD is set and the log is empty.
  void grow() noexcept;
  void clear() noexcept;
  [[nodiscard]] std::uint32_t max_lines() const noexcept { return max_lines_; }

 private:
  // Readers believe nothing: a damaged mask must not lead out of the table.
  [[nodiscard]] std::uint32_t line_mask(std::memory_order order) const noexcept {
    return root_->line_mask.load(order) & (max_lines_ - 1);
  }
  void put(std::atomic<std::uint64_t>& entry, std::uint64_t word, bool logged) noexcept;
  [[nodiscard]] bool put_in_line(const Probe& p, std::uint64_t word, bool logged) noexcept;
  [[nodiscard]] bool move_one(const Probe& p, std::uint64_t word, bool logged) noexcept;
  [[nodiscard]] BlockHash key_of(std::uint64_t word) const noexcept {
    return arena_->segment(static_cast<SegmentId>(word)).hash(0);
  }

  TableRoot* root_;
  TableLine* lines_;
  std::uint32_t max_lines_;
  PageArena* arena_;
  UndoLog* log_;
  WorkCounters* work_;
};

}  // namespace radixshmem
