// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// SWA and MAMBA slots: insert, and what goes with the FULL entries they belong to.
//
// Insert, one transaction per slot: name the aux word as commit word; take a side block if the
// segment has none, counts, owner, list (logged); store the word <- commit. Killed before it: all
// undone, the slot is the dead client's. Killed after it: kept.
// Aux never outlives FULL: cutting FULL entries cuts their aux in the same transaction (free_aux).
#include <algorithm>

#include "base/memory_orders.h"
#include "tree/tree.h"

namespace radixshmem {
bool Tree::attach_aux(Component c, SegmentId id, const Change& stored, SlotId slot,
                      SegmentId deepest) noexcept {
  const Segment holder = segment(id);
  if (holder->side.load(kRelaxed) == 0 && sides_.free_count() == 0) {
    evict_aux_until(c, 0, /*for_side=*/true, {deepest, id});
    if (sides_.free_count() == 0) return false;
  }
  const std::uint32_t pool_index = aux_index(c);
  const SideId attached = holder->side.load(kRelaxed);
  const SideId side = attached != 0 ? attached : sides_.free_head();
  auto& word = sides_.word(side, pool_index, stored.position - holder.start());
  const std::uint64_t with_slot = AuxWord::with_slot(word.load(kRelaxed), slot);
  log_.set_commit(word, with_slot);
  fault_point(FaultPoint::aux_commit_set);
  if (attached == 0) {
    const SideId taken = sides_.pop(id);
    fault_point(FaultPoint::aux_side);
    log_.store(holder->side, taken);
  }
  sides_.add_count(side, pool_index, +1);
  pool(c).set_owner(slot, kOwnerTree);
  fault_point(FaultPoint::aux_owner);
  sides_.remove(side, pool_index);
  sides_.block(side).pools[pool_index].touch.store(clock(), kRelaxed);
  sides_.push_back(side, pool_index);
  ring_.publish(stored);
  word.store(with_slot, kRelease);
  fault_point(FaultPoint::aux_word);
  commit();
  return true;
}

InsertOutcome Tree::insert_aux(Component c, std::span<const BlockHash> hashes,
                               std::vector<std::int32_t> slots, std::uint32_t group) noexcept {
  const auto n = static_cast<Position>(hashes.size());
  const Position first = n - static_cast<Position>(slots.size());
  InsertOutcome out;
  out.first = out.last = n;
  const Walk found = walk(hashes);
  const bool gaps = c == Component::kSwa;
  if (found.parent_differs || first_bad_slot(c, slots, group, gaps) != slots.size()) {
    out.error = ErrorCode::BAD_REQUEST;
    return out;
  }
  if (found.matched < n) out.error = ErrorCode::FULL_PATH_MISSING;
  // From the deepest segment upwards: parents are at hand, nothing has to be remembered.
  SegmentId id = found.deepest;
  for (Position p = n; p-- > first && out.error == ErrorCode::OK;) {
    while (segment(id).start() > p) id = segment(id).parent();
    std::int32_t& slot = slots[p - first];
    if (slot == -1) continue;
    const Segment holder = segment(id);
    const SideId side = holder->side.load(kRelaxed);
    if (side != 0 &&
        AuxWord::present(sides_.word(side, aux_index(c), p - holder.start()).load(kRelaxed))) {
      continue;  // the existing slot wins
    }
    const Change stored{
        ChangeKind::kStored, c, p, hashes[p], p > 0 ? hashes[p - 1] : BlockHash{0}, id};
    if (!attach_aux(c, id, stored, static_cast<SlotId>(slot), found.deepest)) {
      out.error = ErrorCode::MEMPOOL_FULL;
      break;
    }
    slot = -1;
    if (out.first == out.last) out.last = p + 1;
    out.first = p;
  }
  std::erase(slots, -1);
  out.unused = std::move(slots);
  return out;
}

void Tree::detach_side(SideId id) noexcept {
  for (std::uint32_t pool_index = 0; pool_index < aux_pools(); ++pool_index) {
    sides_.remove(id, pool_index);
  }
  log_.store(arena_.header(sides_.block(id).segment.load(kRelaxed))->side, 0);
  sides_.push(id);
  fault_point(FaultPoint::aux_evict_side);
}

void Tree::free_aux(SegmentId id, std::uint32_t from, std::uint32_t to, bool publish,
                    FreeingSet& freeing) noexcept {
  const Segment cut = segment(id);
  const SideId side = cut->side.load(kRelaxed);
  if (side == 0) return;
  for (std::uint32_t pool_index = 0; pool_index < aux_pools(); ++pool_index) {
    const Component c = aux_component(pool_index);
    std::int32_t removed = 0;
    for (std::uint32_t i = from; i < to; ++i) {
      auto& word = sides_.word(side, pool_index, i);
      const std::uint64_t old = word.load(kRelaxed);
      if (!AuxWord::present(old)) continue;
      log_.store_aux(word, cleared_aux(old));
      freeing[static_cast<std::size_t>(c)].add(AuxWord::slot(old));
      --removed;
      if (publish) {
        ring_.publish({ChangeKind::kRemoved, c, cut.start() + i, cut.hash(i), 0, id});
      }
    }
    if (removed == 0) continue;
    sides_.add_count(side, pool_index, removed);
    if (sides_.block(side).pools[pool_index].count.load(kRelaxed) == 0) {
      sides_.remove(side, pool_index);
    }
  }
  if (sides_.empty(side)) detach_side(side);
}

}  // namespace radixshmem
