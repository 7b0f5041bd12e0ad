// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Insert of FULL blocks.
//
//   append       cur ends where the new blocks begin, not on a multiple of S, and has room:
//     write entries beyond count (invisible)
//     name the commit word; owner words -> TREE, eviction list          (logged)
//     store head {same version, count + k}                              <- commit
//   new segment  a branch, the next aligned range, or a continuation when the class is full:
//     pop a segment (logged); fill entries, start, parent (state is FREE: invisible)
//     name the commit word; table entry, parent's children, list, owner words   (logged)
//     store head {version + 1, LIVE, k, k}                              <- commit
//
// One transaction per segment. Killed before the head store: undone, the slots are the dead
// client's again. Killed after it: kept, everything derived is already in place. Ring events are
// published before the commit; an undo raises overflow.
// An append keeps the version: whoever copied the older, shorter run has still copied it rightly.
#include <algorithm>

#include "base/memory_orders.h"
#include "tree/tree.h"

namespace radixshmem {
namespace {

constexpr std::uint32_t kLargestClass = 3;

}  // namespace

void Tree::prefetch(std::span<const BlockHash> hashes) const noexcept {
  for (std::size_t p = 0; p < hashes.size(); p += segment_blocks()) table_.prefetch(hashes[p]);
}

Tree::Walk Tree::walk(std::span<const BlockHash> hashes) const noexcept {
  Walk result;
  const auto n = static_cast<Position>(hashes.size());
  while (result.matched < n) {
    const Position at = result.matched;
    const SegmentId id = table_.find(hashes[at], at);
    if (id == 0) break;
    const Segment found = segment(id);
    if (found.parent() != result.deepest) {
      result.parent_differs = true;
      break;
    }
    const std::uint32_t k = std::min(found.head().count, n - at);
    std::uint32_t equal = 1;
    if (found.hash(k - 1) == hashes[at + k - 1]) {
      equal = k;
    } else {
      while (equal < k && found.hash(equal) == hashes[at + equal]) ++equal;
    }
    result.matched += equal;
    result.deepest = id;
  }
  return result;
}

void Tree::publish_stored(SegmentId id, std::span<const BlockHash> hashes, Position at,
                          Position end) noexcept {
  ChangeRing::Batch events(&ring_, end - at);
  BlockHash parent = at > 0 ? hashes[at - 1] : 0;
  for (Position p = at; p < end; ++p) {
    events.add({ChangeKind::kStored, Component::kFull, p, hashes[p], parent, id});
    parent = hashes[p];
  }
  events.finish();
}

void Tree::change_children(SegmentId parent, Position child_start, int delta) noexcept {
  const Segment p = segment(parent);
  const std::uint32_t children = p.children() + static_cast<std::uint32_t>(delta);
  if (p.capacity() > 1) {
    constexpr std::uint16_t kSticky = 65535;
    auto& count = p.branches()[child_start - p.start() - 1];
    const std::uint16_t now = count.load(kRelaxed);
    // A count that reached the top is no longer exact; it falls only with the last child.
    if (children == 0) {
      log_.store(count, 0);
    } else if (now != kSticky) {
      log_.store(count, static_cast<std::uint16_t>(now + delta));
    }
  }
  log_.store(p->child_count, children);
}

Position Tree::append(SegmentId id, std::span<const BlockHash> hashes,
                      std::span<const SlotId> slots, Position at) noexcept {
  const Segment cur = segment(id);
  const SegmentHead head = cur.head();
  slots = slots.first(std::min<std::size_t>(slots.size(), cur.capacity() - head.count));
  const Position stop = at + static_cast<Position>(slots.size());
  cur.set_hashes(head.count, hashes.subspan(at, slots.size()));
  fault_point(FaultPoint::append_entries);
  cur.set_slots(head.count, slots);
  const std::uint32_t count = head.count + (stop - at);
  const std::uint64_t grown = SegmentHead{head.version, SegmentState::kLive, count, count}.pack();
  log_.set_commit(cur->head, grown);
  fault_point(FaultPoint::append_commit_set);
  pool(Component::kFull).set_owners(slots, kOwnerTree, FaultPoint::append_owner);
  publish_stored(id, hashes, at, stop);
  cur->touch.store(clock(), kRelaxed);
  eviction_.push_back(id);
  count_live(0, stop - at);
  cur->head.store(grown, kRelease);
  fault_point(FaultPoint::append_head);
  commit();
  return stop;
}

std::uint32_t Tree::choose_class(SegmentId deepest, Position at,
                                 std::uint32_t blocks) const noexcept {
  if (at > 0 && at % segment_blocks() == 0) return kLargestClass;
  std::uint32_t chosen = 1;
  if (deepest != 0) {
    const Segment cur = segment(deepest);
    if (cur.start() + cur.head().count == at) {
      // A continuation is of a larger class than what it continues, so that appends of one block
      // do not chain tiny segments.
      chosen = std::min(kLargestClass, cur->size_class.load(kRelaxed) + 1u);
    }
  }
  while (chosen < kLargestClass && layout_.classes.capacity[chosen] < blocks) ++chosen;
  return chosen;
}

std::uint32_t Tree::available_class(std::uint32_t wanted) const noexcept {
  for (std::uint32_t c = wanted; c <= kLargestClass; ++c) {
    if (arena_.can_pop(c)) return c;
  }
  for (std::uint32_t c = wanted; c-- > 1;) {
    if (arena_.can_pop(c)) return c;  // a chain of smaller ones
  }
  return 0;
}

SegmentId Tree::add_segment(SegmentId parent, std::uint32_t size_class,
                            std::span<const BlockHash> hashes, std::span<const SlotId> slots,
                            Position at) noexcept {
  const SegmentId id = arena_.pop(size_class);
  const Segment fresh = segment(id);
  const std::uint64_t free_word = fresh.head_word();
  fresh.set_hashes(0, hashes.subspan(at, slots.size()));
  fault_point(FaultPoint::segment_fill);
  fresh.set_slots(0, slots);
  fresh->start.store(at, kRelease);
  fresh->parent.store(parent, kRelease);
  fresh->touch.store(clock(), kRelease);
  fresh->side.store(0, kRelease);
  fresh.clear_branches();
  const auto count = static_cast<std::uint32_t>(slots.size());
  const std::uint64_t live = next_head(free_word, SegmentState::kLive, count, count);
  log_.set_commit(fresh->head, live);
  fault_point(FaultPoint::segment_commit_set);
  if (!table_.insert(hashes[at], id, /*logged=*/true)) {
    abort();
    table_.end_move();
    return 0;
  }
  fault_point(FaultPoint::segment_table);
  if (parent != 0) {
    change_children(parent, at, +1);
    const Segment p = segment(parent);
    if (p.head().count <= p.floor()) eviction_.remove(parent);
  }
  fault_point(FaultPoint::segment_link);
  eviction_.push_back(id);
  pool(Component::kFull).set_owners(slots, kOwnerTree, FaultPoint::segment_owner);
  publish_stored(id, hashes, at, at + count);
  count_live(1, count);
  fresh->head.store(live, kRelease);
  fault_point(FaultPoint::segment_head);
  commit();
  return id;
}

void Tree::grow_table() noexcept {
  control_->intent.store(kIntentRebuild, kRelease);
  table_.grow();
  control_->intent.store(kIntentNone, kRelease);
  fault_point(FaultPoint::table_grow_end);
}

Position Tree::attach(std::span<const BlockHash> hashes, std::span<const SlotId> slots,
                      const Walk& found) noexcept {
  const auto n = static_cast<Position>(hashes.size());
  const std::uint32_t s = segment_blocks();
  Position at = found.matched;
  SegmentId cur = found.deepest;
  while (at < n) {
    if (table_.wants_growth(control_->live_segments.load(kRelaxed))) grow_table();
    const Position range_end = std::min(n, (at / s + 1) * s);
    const auto mine = slots.subspan(at - found.matched, range_end - at);
    if (cur != 0 && at % s != 0) {
      const Segment segment_now = segment(cur);
      const SegmentHead head = segment_now.head();
      if (segment_now.start() + head.count == at && head.count < segment_now.capacity()) {
        at = append(cur, hashes, mine, at);
        continue;
      }
    }
    if (!arena_.can_pop_any()) {
      fault_point(FaultPoint::evict_in_insert);
      const std::uint32_t depth = cur != 0 ? at - segment(cur).start() : 0;
      evict_until(0, /*for_segment=*/true,
                  mutant(Mutant::kInsertEvictsOwnPath) ? Protected{} : Protected{cur, depth},
                  nullptr);
      if (arena_.can_pop_any()) continue;  // cur may have lost its tail: it can take an append now
    }
    const std::uint32_t size_class = available_class(choose_class(cur, at, range_end - at));
    if (size_class == 0) break;
    const auto run =
        mine.first(std::min<std::size_t>(mine.size(), layout_.classes.capacity[size_class]));
    const SegmentId added = add_segment(cur, size_class, hashes, run, at);
    if (added == 0) break;
    cur = added;
    at += static_cast<Position>(run.size());
  }
  return at;
}

InsertOutcome Tree::insert(std::span<const BlockHash> hashes, std::vector<std::int32_t> slots,
                           Position start, std::uint32_t group) noexcept {
  InsertOutcome out;
  out.first = out.last = start;
  if (first_bad_slot(Component::kFull, slots, group, /*gaps=*/false) != slots.size()) {
    out.error = ErrorCode::BAD_REQUEST;
    return out;
  }
  const Walk found = walk(hashes);
  if (found.parent_differs) {
    out.error = ErrorCode::BAD_REQUEST;
    return out;
  }
  if (found.matched < start) {
    out.error = ErrorCode::FULL_PATH_MISSING;
  } else {
    out.first = found.matched;
    out.last = attach(hashes, slot_ids(slots).subspan(found.matched - start), found);
    if (out.last < hashes.size()) out.error = ErrorCode::MEMPOOL_FULL;
  }
  slots.erase(slots.begin() + (out.first - start), slots.begin() + (out.last - start));
  out.unused = std::move(slots);
  return out;
}

}  // namespace radixshmem
