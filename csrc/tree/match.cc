// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The lock-free reader.
//
// The probes for positions 0, S, 2S, ... do not depend on each other, so table lines and segments
// are prefetched some ranges ahead: a cold hit of many segments costs about two memory latencies.
// Order: head (acquire), fields, hashes and slots (acquire), head again; a changed version restarts
// the walk. Hashes are chained, so equal last hashes mean equal prefixes; where they differ the
// first difference is found by bisection. Everything read is bounds-checked before it is used as an
// index: a stale table entry may point into a page of another class.
#include <algorithm>
#include <array>

#include "base/memory_orders.h"
#include "tree/tree.h"

namespace radixshmem {
namespace {

constexpr std::uint32_t kMaxRestarts = 16;
constexpr std::uint32_t kMaxMoveRestarts = 4;
constexpr std::uint32_t kLinesAhead = 16;  // ranges
constexpr std::uint32_t kSegmentsAhead = 8;

// Runs ahead of a walk over the ranges of a path.
class Prefetcher final {
 public:
  Prefetcher(const HashTable& table, const PageArena& arena, std::span<const BlockHash> hashes,
             Position base, std::uint32_t segment_blocks) noexcept
      : table_(table),
        arena_(arena),
        hashes_(hashes),
        base_(base),
        segment_blocks_(segment_blocks) {}

  void advance(std::size_t at) noexcept {
    const std::size_t n = hashes_.size();
    while (line_ < n && line_ < at + std::size_t{kLinesAhead} * segment_blocks_) {
      table_.prefetch(hashes_[line_]);
      const std::size_t next = next_range(line_);
      __builtin_prefetch(&hashes_[std::min(next, n) - 1]);  // compared with a segment's last
      line_ = next;
    }
    // What is compared first of all segments, so that their page walks overlap; then their slots.
    const std::size_t first = segment_;
    while (segment_ < n && segment_ < at + std::size_t{kSegmentsAhead} * segment_blocks_) {
      const SegmentId id = table_.peek(hashes_[segment_]);
      if (id != 0) fetch_compared(id);
      peeked_[range_of(segment_) % kSegmentsAhead] = {segment_, id};
      segment_ = next_range(segment_);
    }
    for (std::size_t i = first; i < segment_; i = next_range(i)) {
      if (const SegmentId id = peeked(i); id != 0) fetch_slots(id);
    }
  }

  // Returns: the segment that advance() saw for hashes[at]; 0 if none.
  [[nodiscard]] SegmentId peeked(std::size_t at) const noexcept {
    const Peeked& seen = peeked_[range_of(at) % kSegmentsAhead];
    return seen.at == at ? seen.segment : 0;
  }

 private:
  struct Peeked {
    std::size_t at = ~std::size_t{0};
    SegmentId segment = 0;
  };

  [[nodiscard]] std::size_t range_of(std::size_t i) const noexcept {
    return (base_ + i) / segment_blocks_;
  }
  [[nodiscard]] std::size_t next_range(std::size_t i) const noexcept {
    return (range_of(i) + 1) * segment_blocks_ - base_;
  }
  [[nodiscard]] std::size_t slots_offset() const noexcept {
    return kSegmentHeaderBytes + std::size_t{8} * segment_blocks_;
  }
  void fetch_compared(SegmentId id) const noexcept {
    const auto* bytes = reinterpret_cast<const char*>(arena_.header(id));
    __builtin_prefetch(bytes);
    __builtin_prefetch(bytes + slots_offset() - 8);  // the last hash
  }
  void fetch_slots(SegmentId id) const noexcept {
    const auto* bytes = reinterpret_cast<const char*>(arena_.header(id));
    const std::size_t end = slots_offset() + std::size_t{4} * segment_blocks_;
    for (std::size_t at = slots_offset() - 8 + kCacheLine; at < end; at += kCacheLine) {
      __builtin_prefetch(bytes + at);
    }
  }

  const HashTable& table_;
  const PageArena& arena_;
  std::span<const BlockHash> hashes_;
  Position base_;
  std::uint32_t segment_blocks_;
  std::size_t line_ = 0;
  std::size_t segment_ = 0;
  std::array<Peeked, kSegmentsAhead> peeked_{};
};

// Returns: how many of the entries [from, from + k) equal hashes[0, k).
std::uint32_t common_prefix(Segment segment, std::uint32_t from, const BlockHash* hashes,
                            std::uint32_t k) noexcept {
  if (k == 0 || segment.hash(from) != hashes[0]) return 0;
  if (segment.hash(from + k - 1) == hashes[k - 1]) return k;
  std::uint32_t equal = 1;  // entries [0, equal) are equal, entry `differs` is not
  std::uint32_t differs = k - 1;
  while (equal < differs) {
    const std::uint32_t middle = (equal + differs) / 2;
    if (segment.hash(from + middle) == hashes[middle]) {
      equal = middle + 1;
    } else {
      differs = middle;
    }
  }
  return equal;
}

}  // namespace

bool Tree::match(std::span<const BlockHash> hashes, const CursorPoint* from, std::int32_t* slots,
                 Match& out) const {
  const auto n = static_cast<std::uint32_t>(hashes.size());
  const Position base = from != nullptr ? from->position : 0;
  out.gave_up = false;
  for (out.restarts = 0; out.restarts <= kMaxRestarts; ++out.restarts) {
    out.arena_sequence = arena_.sequence(kAcquire);
    const std::uint32_t moves = table_.sequence(kAcquire);
    out.steps.clear();
    std::uint32_t at = 0;  // index into hashes
    bool changed = false;

    // Takes what `id` has of the path from entry `entry` on. Returns: whether anything, or the
    // walk must restart (`changed`).
    const auto take = [&](SegmentId id, std::uint32_t entry) {
      if (id == 0 || id >= arena_.units()) return false;
      const Segment segment = arena_.segment(id);
      const std::uint64_t word = segment.head_word();
      const SegmentHead head = SegmentHead::unpack(word);
      const Position start = segment.start();
      if (!head.live() || start + entry != base + at || head.count > segment.capacity() ||
          head.count < entry) {
        return false;
      }
      const std::uint32_t k = std::min(head.count - entry, n - at);
      const std::uint32_t equal = common_prefix(segment, entry, hashes.data() + at, k);
      if (equal != 0) segment.read_slots(entry, {slots + at, equal});
      if (head_version(segment->head.load(kRelaxed)) != head.version) {
        changed = true;
        return true;
      }
      if (equal == 0 && entry == 0) return false;
      out.steps.push_back({id, 0, head.version, start, entry + equal});
      at += equal;
      return true;
    };

    if (from != nullptr) {
      if (!arena_.valid(from->segment) ||
          arena_.segment(from->segment).head().version != from->version ||
          !take(from->segment, from->depth)) {
        if (!changed) return false;
      }
    }
    Prefetcher ahead(table_, arena_, hashes, base, segment_blocks());
    while (!changed && at < n) {
      ahead.advance(at);
      if (!take(ahead.peeked(at), 0) &&
          !table_.for_each_candidate(hashes[at], [&](SegmentId id) { return take(id, 0); })) {
        break;
      }
      widen_race<128>();
      reader_point(ReaderPoint::kSegmentTaken);
    }
    out.end = base + at;
    if (changed ||
        (arena_.sequence(kRelaxed) != out.arena_sequence && !mutant(Mutant::kNoArenaSequence))) {
      continue;
    }
    // A miss while entries moved may be false; a few more looks, then it stands.
    if (at < n && out.restarts < kMaxMoveRestarts &&
        ((moves & 1) != 0 || table_.sequence(kAcquire) != moves)) {
      continue;
    }
    return true;
  }
  out.gave_up = true;
  out.end = base;
  out.steps.clear();
  return from == nullptr;
}

bool Tree::validate(const Match& match, const Window& window) const noexcept {
  constexpr auto kSeqCst = std::memory_order_seq_cst;
  if (arena_.sequence(kSeqCst) != match.arena_sequence && !mutant(Mutant::kNoArenaSequence)) {
    return false;
  }
  const std::size_t begin =
      mutant(Mutant::kValidateDeepestOnly) && !match.steps.empty() ? match.steps.size() - 1 : 0;
  for (std::size_t i = begin; i < match.steps.size(); ++i) {
    const MatchStep& step = match.steps[i];
    if (head_version(arena_.header(step.segment)->head.load(kSeqCst)) != step.version) {
      return false;
    }
  }
  if (mutant(Mutant::kNoAuxReload)) return true;
  for (const AuxRead& use : window.reads) {
    const MatchStep& step = match.steps[use.step];
    if (!AuxWord::present(use.word)) return false;
    if (!mutant(Mutant::kNoSideReload) &&
        arena_.header(step.segment)->side.load(kSeqCst) != step.side) {
      return false;
    }
    if (sides_.word(step.side, use.pool, use.entry).load(kSeqCst) != use.word) return false;
  }
  return true;
}

bool Tree::stands(const Match& match) const noexcept {
  const SegmentId deepest = match.steps.back().segment;
  const std::uint64_t word = arena_.header(deepest)->head.load(std::memory_order_seq_cst);
  return SegmentHead::unpack(word).live();
}

void Tree::touch(const Match& match, const Window& window) const noexcept {
  if (match.steps.empty()) return;
  const std::uint32_t now = clock();
  auto& touched = arena_.header(match.steps.back().segment)->touch;
  if (touched.load(kRelaxed) != now) touched.store(now, kRelaxed);
  std::uint32_t last = ~0u;
  std::uint32_t last_pool = ~0u;
  for (const AuxRead& use : window.reads) {
    if (use.step == last && use.pool == last_pool) continue;
    last = use.step;
    last_pool = use.pool;
    auto& side = sides_.block(match.steps[use.step].side).pools[use.pool].touch;
    if (side.load(kRelaxed) != now) side.store(now, kRelaxed);
  }
}

}  // namespace radixshmem
