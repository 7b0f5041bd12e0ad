// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Eviction of SWA or MAMBA slots alone, least recently used side blocks first.
//
// One transaction per batch, in the order of evict.cc: mark the words as leaving, which hides them,
// scan the pins (seq_cst), show pinned ones again {version + 1}, only then clear the rest
// {version + 1, absent} and free their slots. Killed anywhere before the commit: undone as a whole.
// A leaving word still names its slot: even without its log, a rebuild gives it back to its pins.
// Where a side block is wanted, not slots, the lists of both pools are looked through, and only
// blocks without a pinned slot are emptied.
#include <algorithm>

#include "base/memory_orders.h"
#include "tree/tree.h"

namespace radixshmem {
namespace {

constexpr std::uint32_t kStepsPerBatch = 64;
constexpr std::uint32_t kLogEntriesPerWord = 12;
constexpr std::uint32_t kLogEntriesPerBlock = 64;

}  // namespace

std::uint32_t Tree::evict_aux(Component c, std::uint32_t wanted) noexcept {
  return evict_aux_until(c, wanted, /*for_side=*/false, OwnWindow{});
}

std::uint32_t Tree::spared_depth(SegmentId holder, OwnWindow keep) const noexcept {
  for (SegmentId own = keep.deepest; own != keep.end; own = segment(own).parent()) {
    if (own == holder) return segment_blocks();  // what this insert says has landed stays
  }
  return pinned_depth(holder);
}

void Tree::choose_words(std::uint32_t list, std::uint32_t wanted, bool for_side, OwnWindow keep,
                        AuxBatch& batch, EvictionLap& lap) noexcept {
  constexpr std::uint32_t kLogEntries =
      kLogEntriesPerWord * AuxBatch::kMaxWords + kLogEntriesPerBlock * AuxBatch::kMaxBlocks;
  std::uint32_t steps = 0;
  const auto enough = [&] { return !for_side && batch.words >= wanted; };
  while (batch.blocks < (for_side ? 1 : AuxBatch::kMaxBlocks) &&
         batch.words + kMaxSegmentBlocks <= AuxBatch::kMaxWords && !enough() &&
         sides_.front(list) != 0 && log_.room() >= kLogEntries) {
    const SideId id = sides_.front(list);
    if (lap.ends_at(id)) break;
    const bool touched = lap.spares_touched() && sides_.was_touched(id, list);
    sides_.remove(id, list);
    if (touched && steps++ < kStepsPerBatch) {
      sides_.push_back(id, list);
      continue;
    }
    std::uint32_t low = spared_depth(sides_.block(id).segment.load(kRelaxed), keep);
    if (for_side && low != 0) low = segment_blocks();  // what keeps a slot keeps its block
    const std::uint32_t before = batch.words;
    for (std::uint32_t q = 0; q < aux_pools(); ++q) {
      if (q != list && !for_side) continue;
      for (std::uint32_t i = segment_blocks(); i-- > low;) {
        if (enough()) {
          batch.cut_short = id;
          break;
        }
        const std::uint64_t word = sides_.word(id, q, i).load(kRelaxed);
        if (AuxWord::present(word)) batch.word[batch.words++] = {id, q, i, word};
      }
    }
    if (batch.words == before) {
      sides_.push_back(id, list);
      lap.pass_over(id);
      continue;
    }
    batch.block[batch.blocks++] = id;
  }
}

void Tree::spare_pinned_words(AuxBatch& batch, bool hidden) noexcept {
  scan_protection([&](SegmentId id, std::uint32_t depth, std::uint32_t mask) {
    for (AuxBatch::Word& taken : batch.taken()) {
      if (taken.side == 0 || depth <= taken.entry || (mask & aux_mask(taken.pool)) == 0 ||
          sides_.block(taken.side).segment.load(kRelaxed) != id) {
        continue;
      }
      if (hidden) {
        auto& word = sides_.word(taken.side, taken.pool, taken.entry);
        log_.store_aux(word, AuxWord::back_after(word.load(kRelaxed)));
      }
      taken.side = 0;
      control_->work.eviction_rollbacks.fetch_add(1, kRelaxed);
      fault_point(FaultPoint::aux_evict_rolled_back);
    }
  });
}

bool Tree::free_words(AuxBatch& batch) noexcept {
  FreeingSet freeing = begin_freeing();
  bool any = false;
  for (const AuxBatch::Word& taken : batch.taken()) {
    if (taken.side == 0) continue;
    any = true;
    const Component c = aux_component(taken.pool);
    log_.store_aux(sides_.word(taken.side, taken.pool, taken.entry), cleared_aux(taken.old));
    freeing[static_cast<std::size_t>(c)].add(AuxWord::slot(taken.old));
    fault_point(FaultPoint::aux_evict_owner);
    const SegmentId id = sides_.block(taken.side).segment.load(kRelaxed);
    const Segment holder = segment(id);
    ring_.publish(
        {ChangeKind::kRemoved, c, holder.start() + taken.entry, holder.hash(taken.entry), 0, id});
    sides_.add_count(taken.side, taken.pool, -1);
  }
  finish(freeing);
  return any;
}

void Tree::requeue_sides(const AuxBatch& batch, bool any_went) noexcept {
  for (const SideId id : std::span(batch.block.data(), batch.blocks)) {
    if (sides_.empty(id)) {
      detach_side(id);
      continue;
    }
    for (std::uint32_t q = 0; q < aux_pools(); ++q) {
      if (sides_.block(id).pools[q].count.load(kRelaxed) == 0) {
        sides_.remove(id, q);
      } else if (any_went && id == batch.cut_short) {
        sides_.push_front(id, q);  // the rest of a broken window is of no use
      } else {
        sides_.push_back(id, q);
      }
    }
  }
}

std::uint32_t Tree::evict_aux_until(Component c, std::uint32_t wanted, bool for_side,
                                    OwnWindow keep) noexcept {
  const std::uint32_t free_before = pool(c).free_count();
  if (control_->zombies.load(kRelaxed) != 0) sweep();
  const auto freed = [&] { return pool(c).free_count() - free_before; };
  std::uint32_t list = aux_index(c);
  std::uint32_t lists = for_side ? aux_pools() : 1;  // to look through: a side block serves all
  EvictionLap lap;
  while (for_side ? sides_.free_count() == 0 : freed() < wanted) {
    collect_pins(for_side ? kMaskSwa | kMaskMamba : aux_mask(list));
    AuxBatch batch;
    choose_words(list, for_side ? 0 : wanted - freed(), for_side, keep, batch, lap);
    if (batch.words == 0) {
      commit();
      if (sides_.front(list) != 0 && lap.look_again()) continue;
      if (--lists == 0) break;
      list = 1 - list;
      lap = EvictionLap{};
      continue;
    }
    control_->clock.fetch_add(1, kRelaxed);
    if (mutant(Mutant::kAuxScanBeforeOnly)) spare_pinned_words(batch, /*hidden=*/false);
    for (const AuxBatch::Word& taken : batch.taken()) {
      if (taken.side == 0) continue;
      log_.store_aux(sides_.word(taken.side, taken.pool, taken.entry), AuxWord::leaving(taken.old));
    }
    fault_point(FaultPoint::aux_evict_truncated);
    if (!mutant(Mutant::kAuxScanBeforeOnly)) spare_pinned_words(batch, /*hidden=*/true);
    fault_point(FaultPoint::aux_evict_scanned);

    const bool any_went = free_words(batch);
    requeue_sides(batch, any_went);
    if (any_went) {
      lap.restart();
    } else {
      lap.pass_over(batch.block[0]);
    }
    commit();
  }
  commit();
  return freed();
}

}  // namespace radixshmem
