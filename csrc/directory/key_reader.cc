// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/key_reader.h"

#include <algorithm>

#include "base/memory_orders.h"

namespace radixshmem {
namespace {

constexpr int kAttempts = 4;

}  // namespace

// Goes from a segment towards the root, position by position, and reads aux words. Bounded: every
// step leads to a segment that starts earlier.
class KeyReader::Ascent final {
 public:
  Ascent(const Tree& tree, SegmentId leaf) noexcept : tree_(tree) { enter(leaf); }

  [[nodiscard]] SegmentId segment() const noexcept { return id_; }
  // Returns: false when the path does not lead there.
  bool to(Position position) noexcept {
    while (id_ != 0 && start_ > position) {
      const Position before = start_;
      enter(tree_.arena().header(id_)->parent.load(kRelaxed));
      if (start_ >= before) id_ = 0;
    }
    return id_ != 0;
  }
  // Requires: to(position) was true.
  [[nodiscard]] bool present(Component c, Position position) const noexcept {
    const std::uint32_t entry = position - start_;
    if (side_ == 0 || entry >= tree_.segment_blocks()) return false;
    return AuxWord::present(tree_.sides().word(side_, tree_.aux_index(c), entry).load(kAcquire));
  }

 private:
  void enter(SegmentId id) noexcept {
    id_ = tree_.arena().valid(id) ? id : 0;
    if (id_ == 0) return;
    const SegmentHeader* header = tree_.arena().header(id_);
    start_ = header->start.load(kRelaxed);
    const SideId side = header->side.load(kAcquire);
    side_ = side < tree_.sides().size() ? side : 0;
  }

  const Tree& tree_;
  SegmentId id_ = 0;
  SideId side_ = 0;
  Position start_ = 0;
};

KeyReader::KeyReader(const Tree& tree) noexcept
    : tree_(tree),
      grid_(key_grid(tree.plan().block_size, tree.segment_blocks())),
      window_(tree.plan().swa_window_blocks),
      swa_(tree.enabled(Component::kSwa)),
      mamba_(tree.enabled(Component::kMamba)) {}

std::optional<KeyFacts> KeyReader::read(SegmentId id, Position position) const noexcept {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (const auto facts = read_once(id, position); facts) return facts;
  }
  return std::nullopt;
}

std::optional<KeyFacts> KeyReader::read_once(SegmentId id, Position position) const noexcept {
  const PageArena& arena = tree_.arena();
  const std::uint64_t sequence = arena.sequence(kAcquire);
  if (!arena.valid(id)) return std::nullopt;
  const Segment segment = arena.segment(id);
  const SegmentHead head = segment.head();
  const Position start = segment.start();
  if (!head.live() || head.count > segment.capacity() || position < start ||
      position - start >= head.count) {
    return std::nullopt;
  }
  KeyFacts facts;
  facts.key = segment.hash(position - start);
  facts.segment = {id, arena.class_of(id)};
  const SegmentId parent = segment->parent.load(kAcquire);
  if (parent != 0 && arena.valid(parent)) facts.parent = {parent, arena.class_of(parent)};
  if (head_version(segment->head.load(kAcquire)) != head.version ||
      arena.sequence(kAcquire) != sequence) {
    return std::nullopt;
  }
  return facts;
}

SegmentId KeyReader::holder_above(SegmentId leaf, Position position) const noexcept {
  Ascent path(tree_, leaf);
  return path.to(position) ? path.segment() : 0;
}

std::optional<KeyFacts> KeyReader::read_above(SegmentId leaf, Position position) const noexcept {
  const SegmentId holder = holder_above(leaf, position);
  return holder != 0 ? read(holder, position) : std::nullopt;
}

GranuleAux KeyReader::aux(SegmentId leaf, Position key_position) const noexcept {
  GranuleAux found;
  if (!has_aux() || !tree_.arena().valid(leaf)) return found;
  const Segment last = tree_.arena().segment(leaf);
  const Position end = std::min(key_position + grid_, last.start() + last.head().count);
  if (mamba_) {
    Ascent path(tree_, leaf);
    for (Position p = end; p-- > key_position && path.to(p);) {
      if (path.present(Component::kMamba, p)) {
        found.bits |= GranuleAux::kMamba;
        break;
      }
    }
  }
  if (!swa_) return found;
  // A run of blocks with slots that ends in the granule: long enough, or down to the root?
  Ascent path(tree_, leaf);
  Position run_end = 0;  // above the last block of the run; 0 = none
  for (Position p = end; p-- > 0 && path.to(p);) {
    if (!path.present(Component::kSwa, p)) {
      if (run_end != 0) found.lacking = path.segment();
      run_end = 0;
      if (p <= key_position) return found;
      continue;
    }
    if (run_end == 0 && p < key_position) return found;
    if (run_end == 0) run_end = p + 1;
    if (run_end - p >= std::min(window_, run_end)) {
      found.bits |= GranuleAux::kSwa;
      found.lacking = 0;
      return found;
    }
  }
  return found;
}

}  // namespace radixshmem
