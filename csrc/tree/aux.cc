// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// SWA and MAMBA slots: insert, and eviction of them alone.
//
// Insert, one transaction per slot: name the aux word as commit word; take a side block if the
// segment has none, counts, owner, list (logged); store the word <- commit. Killed before it: all
// undone, the slot is the dead client's. Killed after it: kept.
// Eviction, one transaction per batch, in the order of evict.cc: clear the words {version + 1,
// absent}, scan the pins, roll back pinned ones, only then free.
// Aux never outlives FULL: cutting FULL entries cuts their aux in the same transaction (free_aux).
#include <algorithm>

#include "tree/tree.h"

namespace radixshmem {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kRelease = std::memory_order_release;
constexpr std::uint32_t kMaxBlocks = 8;                      // side blocks per batch
constexpr std::uint32_t kMaxPicks = 2 * kMaxSegmentBlocks;   // words per batch
constexpr std::uint32_t kStepsPerBatch = 64;
constexpr std::uint32_t kBatchLogEntries = 12 * kMaxPicks + 64 * kMaxBlocks;

std::uint64_t cleared(std::uint64_t word) noexcept {
  return mutant(Mutant::kNoAuxVersionBump) ? (word >> 32) << 32 : AuxWord::absent_after(word);
}

void remember_unused(InsertOutcome& out, std::span<const std::int32_t> slots,
                     std::size_t from) noexcept {
  for (std::size_t i = from; i < slots.size(); ++i) {
    if (slots[i] != -1) out.unused.push_back(slots[i]);
  }
}

}  // namespace

void Tree::insert_aux(Component c, std::span<const BlockHash> hashes,
                      std::span<const std::int32_t> slots, std::uint32_t group,
                      InsertOutcome& out) noexcept {
  const auto n = static_cast<Position>(hashes.size());
  const Position first = n - static_cast<Position>(slots.size());
  out.first = out.last = n;
  if (first_bad_slot(c, slots, group, /*gaps=*/true) != slots.size()) {
    out.error = ErrorCode::BAD_REQUEST;
    return;
  }
  const Walk found = walk(hashes);
  if (found.parent_differs || found.matched < n) {
    out.error = found.parent_differs ? ErrorCode::BAD_REQUEST : ErrorCode::FULL_PATH_MISSING;
    if (!found.parent_differs) remember_unused(out, slots, 0);
    return;
  }
  const std::uint32_t pool_index = aux_index(c);
  // From the deepest segment upwards: parents are at hand, nothing has to be remembered.
  SegmentId id = found.deepest;
  for (Position p = n; p-- > first;) {
    while (segment(id).start() > p) id = segment(id).parent();
    const std::int32_t slot = slots[p - first];
    if (slot == -1) continue;
    const Segment holder = segment(id);
    const std::uint32_t entry = p - holder.start();
    if (holder->side.load(kRelaxed) == 0 && sides_.free_count() == 0) {
      evict_aux_until(c, 0, /*for_side=*/true, {found.deepest, id});
    }
    const SideId attached = holder->side.load(kRelaxed);
    if (attached == 0 && sides_.free_count() == 0) {
      out.error = ErrorCode::MEMPOOL_FULL;
      for (Position q = first; q <= p; ++q) {
        if (slots[q - first] != -1) out.unused.push_back(slots[q - first]);
      }
      return;
    }
    const SideId side = attached != 0 ? attached : sides_.free_head();
    auto& word = sides_.word(side, pool_index, entry);
    const std::uint64_t old = word.load(kRelaxed);
    if (AuxWord::present(old)) {
      out.unused.push_back(slot);  // the existing slot wins
      continue;
    }
    const std::uint64_t stored = AuxWord::with_slot(old, static_cast<SlotId>(slot));
    log_.set_commit(word, stored);
    fault_point(FaultPoint::aux_commit_set);
    if (attached == 0) {
      const SideId taken = sides_.pop(id);
      fault_point(FaultPoint::aux_side);
      log_.store(holder->side, taken);
    }
    sides_.add_count(side, pool_index, +1);
    pool(c).set_owner(static_cast<SlotId>(slot), kOwnerTree);
    fault_point(FaultPoint::aux_owner);
    sides_.remove(side, pool_index);
    sides_.block(side).pools[pool_index].touch.store(clock(), kRelaxed);
    sides_.push_back(side, pool_index);
    ring_.publish({ChangeKind::kStored, c, p, hashes[p], p > 0 ? hashes[p - 1] : BlockHash{0}});
    word.store(stored, kRelease);
    fault_point(FaultPoint::aux_word);
    commit();
    if (out.first == out.last) out.last = p + 1;
    out.first = p;
  }
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
                    std::array<SlotPool::Freeing, kComponents>& freeing) noexcept {
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
      log_.store_aux(word, cleared(old));
      freeing[static_cast<std::size_t>(c)].add(AuxWord::slot(old));
      --removed;
      if (publish) {
        ring_.publish({ChangeKind::kRemoved, c, cut.start() + i, cut.hash(i), 0});
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

std::uint32_t Tree::evict_aux(Component c, std::uint32_t wanted) noexcept {
  return evict_aux_until(c, wanted, /*for_side=*/false, OwnWindow{});
}

std::uint32_t Tree::evict_aux_until(Component c, std::uint32_t wanted, bool for_side,
                                    OwnWindow keep) noexcept {
  struct Pick {
    SideId side = 0;  // 0 = rolled back
    std::uint32_t pool_index = 0;
    std::uint32_t entry = 0;
    std::uint64_t old = 0;
  };
  const std::uint32_t free_before = pool(c).free_count();
  if (control_->zombies.load(kRelaxed) != 0) sweep();
  const auto freed = [&] { return pool(c).free_count() - free_before; };
  const auto mask_of = [&](std::uint32_t pool_index) {
    return 1u << static_cast<std::uint32_t>(aux_component(pool_index));
  };
  std::uint32_t list = aux_index(c);
  SideId lap_mark = 0;
  bool lapped = false;
  bool second_chance = true;
  while (!lapped && (for_side ? sides_.free_count() == 0 : freed() < wanted)) {
    if (for_side && sides_.front(list) == 0 && aux_pools() > 1) list = 1 - list;
    std::array<Pick, kMaxPicks> picks;
    std::array<SideId, kMaxBlocks> blocks;
    std::uint32_t picked = 0;
    std::uint32_t block_count = 0;
    std::uint32_t steps = 0;
    collect_pins(for_side ? kMaskSwa | kMaskMamba : mask_of(list));
    SideId cut_short = 0;  // has more to give: stays in front
    while (block_count < (for_side ? 1 : kMaxBlocks) &&
           picked + kMaxSegmentBlocks <= kMaxPicks &&
           (for_side || freed() + picked < wanted) && sides_.front(list) != 0) {
      if (log_.room() < kBatchLogEntries) break;
      const SideId id = sides_.front(list);
      if (id == lap_mark) {
        lapped = true;
        break;
      }
      const bool touched = second_chance && sides_.was_touched(id, list);
      sides_.remove(id, list);
      if (touched && steps++ < kStepsPerBatch) {
        sides_.push_back(id, list);
        continue;
      }
      const SegmentId holder = sides_.block(id).segment.load(kRelaxed);
      std::uint32_t low = pinned_depth(holder);
      for (SegmentId own = keep.deepest; own != keep.end; own = segment(own).parent()) {
        if (own == holder) low = segment_blocks();  // what this insert says has landed stays
      }
      const std::uint32_t before = picked;
      for (std::uint32_t q = 0; q < aux_pools(); ++q) {
        if (q != list && !for_side) continue;
        for (std::uint32_t i = segment_blocks(); i-- > low;) {
          if (!for_side && freed() + picked >= wanted) {
            cut_short = id;
            break;
          }
          const std::uint64_t word = sides_.word(id, q, i).load(kRelaxed);
          if (AuxWord::present(word)) picks[picked++] = {id, q, i, word};
        }
      }
      if (picked == before) {
        sides_.push_back(id, list);
        if (lap_mark == 0) lap_mark = id;
        continue;
      }
      blocks[block_count++] = id;
    }
    if (picked == 0) {
      commit();
      if (sides_.front(list) == 0) break;
      if (lapped && second_chance) {  // what was spared for being touched has to go after all
        second_chance = lapped = false;
        lap_mark = 0;
      }
      continue;
    }
    lapped = false;
    control_->clock.fetch_add(1, kRelaxed);
    const std::span<Pick> batch(picks.data(), picked);

    const auto spare_pinned = [&](bool truncated) {
      scan_protection([&](SegmentId id, std::uint32_t depth, std::uint32_t mask) {
        for (Pick& pick : batch) {
          if (pick.side == 0 || depth <= pick.entry || (mask & mask_of(pick.pool_index)) == 0 ||
              sides_.block(pick.side).segment.load(kRelaxed) != id) {
            continue;
          }
          if (truncated) {
            auto& word = sides_.word(pick.side, pick.pool_index, pick.entry);
            log_.store_aux(word, AuxWord::absent_after(word.load(kRelaxed)) |
                                     static_cast<std::uint32_t>(pick.old));
          }
          pick.side = 0;
          control_->work.eviction_rollbacks.fetch_add(1, kRelaxed);
          fault_point(FaultPoint::aux_evict_rolled_back);
        }
      });
    };
    if (mutant(Mutant::kAuxScanBeforeOnly)) spare_pinned(false);
    for (const Pick& pick : batch) {
      if (pick.side == 0) continue;
      log_.store_aux(sides_.word(pick.side, pick.pool_index, pick.entry), cleared(pick.old));
    }
    fault_point(FaultPoint::aux_evict_truncated);
    if (!mutant(Mutant::kAuxScanBeforeOnly)) spare_pinned(true);
    fault_point(FaultPoint::aux_evict_scanned);

    std::array<SlotPool::Freeing, kComponents> freeing{SlotPool::Freeing(&pools_[0]),
                                                       SlotPool::Freeing(&pools_[1]),
                                                       SlotPool::Freeing(&pools_[2])};
    bool any = false;
    for (const Pick& pick : batch) {
      if (pick.side == 0) continue;
      any = true;
      const Component owner = aux_component(pick.pool_index);
      freeing[static_cast<std::size_t>(owner)].add(AuxWord::slot(pick.old));
      fault_point(FaultPoint::aux_evict_owner);
      const Segment holder = segment(sides_.block(pick.side).segment.load(kRelaxed));
      ring_.publish({ChangeKind::kRemoved, owner, holder.start() + pick.entry,
                     holder.hash(pick.entry), 0});
      sides_.add_count(pick.side, pick.pool_index, -1);
    }
    for (SlotPool::Freeing& f : freeing) f.finish();
    for (const SideId id : std::span(blocks.data(), block_count)) {
      if (sides_.empty(id)) {
        detach_side(id);
        continue;
      }
      for (std::uint32_t q = 0; q < aux_pools(); ++q) {
        if (sides_.block(id).pools[q].count.load(kRelaxed) == 0) {
          sides_.remove(id, q);
        } else if (any && id == cut_short) {
          sides_.push_front(id, q);
        } else {
          sides_.push_back(id, q);
        }
      }
      if (!any && lap_mark == 0) lap_mark = id;
    }
    if (any) lap_mark = 0;
    commit();
  }
  commit();
  return freed();
}

}  // namespace radixshmem
