// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Eviction of FULL blocks: tails of leaves, least recently used first, in batches of 16 victims.
//
//   E0  read all pins into a filter (speed only)
//   E1  victims = front of the list; keep = max(floor, pinned depth, what is not needed)
//   E2  truncate: head = {version + 1, count = keep, hi = old count}   for all victims
//   E4  scan ALL pins again (seq_cst against E2): a victim pinned deeper gets its count back
//   E5  per victim: head = {version + 1, keep, keep} or FREE
//   E6  its slots to the free list, or to whoever wants them
//   E7  table entry, parent's children, free segment
//   E8  commit: the whole batch is one transaction
//
// The order truncate, scan, free must not change: a reader publishes its pin and then validates
// versions, so either it sees the truncation or the scan sees its pin. Readers never wait.
// Killed anywhere before E8: undone as a whole; no slot leaves the lock before that.
// An ancestor's tail may be cut in the same batch as its children, never below the floor it had
// when the batch began. A batch takes another victim only while the log has room for the worst
// case of all of them.
// The search gives up after a full lap in which no victim survived E4.
#include <algorithm>

#include "base/memory_orders.h"
#include "tree/tree.h"

namespace radixshmem {
namespace {

constexpr std::uint32_t kStepsPerBatch = 64;
constexpr std::uint32_t kStepsPerVictim = 4;
constexpr std::uint32_t kSegmentVictims = 4;  // a batch when only a segment is wanted
constexpr std::uint32_t kStepLogEntries = 64;

}  // namespace

void Tree::collect_pins(std::uint32_t mask) noexcept {
  ++pin_filter_epoch_;
  if (stress()) return;
  const std::size_t wrap = pin_filter_.size() - 1;
  std::size_t filled = 0;
  scan_protection([&](SegmentId id, std::uint32_t depth, std::uint32_t pinned) {
    if (filled > wrap / 2 || (pinned & mask) == 0) return;
    std::size_t i = mix_hash(id) & wrap;
    while (pin_filter_[i].epoch == pin_filter_epoch_ && pin_filter_[i].segment != id) {
      i = (i + 1) & wrap;
    }
    PinFilterEntry& entry = pin_filter_[i];
    if (entry.epoch != pin_filter_epoch_) {
      entry = {id, depth, pin_filter_epoch_};
      ++filled;
    }
    entry.depth = std::max(entry.depth, depth);
  });
}

std::uint32_t Tree::pinned_depth(SegmentId id) const noexcept {
  const std::size_t mask = pin_filter_.size() - 1;
  for (std::size_t i = mix_hash(id) & mask; pin_filter_[i].epoch == pin_filter_epoch_;
       i = (i + 1) & mask) {
    if (pin_filter_[i].segment == id) return pin_filter_[i].depth;
  }
  return 0;
}

std::uint32_t Tree::choose_victims(std::uint32_t wanted, bool for_segment, Protected keep,
                                   std::array<Victim, kMaxVictims>& out,
                                   EvictionLap& lap) noexcept {
  std::uint32_t victims = 0;
  std::uint32_t planned = 0;
  std::uint32_t steps = 0;
  while (victims < (for_segment ? kSegmentVictims : kMaxVictims) &&
         (for_segment || planned < wanted) && eviction_.front() != 0) {
    if (log_.room() < (victims + 1) * victim_log_entries() + kStepLogEntries) break;
    const SegmentId id = eviction_.front();
    if (lap.ends_at(id)) break;
    const bool touched = lap.spares_touched() && eviction_.was_touched(id);
    eviction_.remove(id);
    if (touched && steps < kStepsPerBatch + kStepsPerVictim * victims) {
      ++steps;
      eviction_.push_back(id);
      continue;
    }
    ++steps;
    const Segment victim = segment(id);
    const std::uint32_t count = victim.head().count;
    std::uint32_t floor = victim.floor();
    if (mutant(Mutant::kFloorIgnoresBatchChildren)) {
      const bool only_victims_below = std::any_of(
          out.begin(), out.begin() + victims,
          [&](const Victim& v) { return v.keep == 0 && segment(v.segment).parent() == id; });
      if (only_victims_below && victim.children() == 1) floor = 0;
    }
    std::uint32_t low = std::max(floor, pinned_depth(id));
    if (id == keep.segment) low = std::max(low, keep.depth);
    if (count <= low) {
      eviction_.push_back(id);
      lap.pass_over(id);
      continue;
    }
    const std::uint32_t missing = for_segment ? count : wanted - planned;
    const std::uint32_t cut = count > missing ? std::max(low, count - missing) : low;
    out[victims++] = {id, count, cut};
    planned += count - cut;
    victim.prefetch();
  }
  control_->work.eviction_steps.fetch_add(steps, kRelaxed);
  return victims;
}

std::uint32_t Tree::free_victim(const Victim& victim, Grant* grant) noexcept {
  const SegmentId id = victim.segment;
  const Segment cut = segment(id);
  const Position start = cut.start();
  const SegmentId parent = cut.parent();
  const BlockHash key = cut.hash(0);
  const bool gone = victim.keep == 0;
  const std::uint64_t word = cut.head_word();
  const std::uint64_t ended =
      next_head(word, gone ? SegmentState::kFree : SegmentState::kLive, victim.keep, victim.keep);
  log_.store_head(cut->head,
                  mutant(Mutant::kNoVersionBump) ? ended - (std::uint64_t{1} << 24) : ended);
  fault_point(FaultPoint::evict_commit);

  FreeingSet freeing = begin_freeing();
  const std::uint32_t blocks = victim.count - victim.keep;
  const SlotRun slots(cut, victim.keep, blocks);
  if (grant != nullptr) {
    pool(Component::kFull).set_owners(slots.ids(), grant->owner, FaultPoint::evict_owner);
    std::ranges::copy(slots.ids(), grant->out.data() + grant->got);
    grant->got += blocks;
  } else {
    freeing[0].add(slots.ids(), FaultPoint::evict_owner);
  }
  ChangeRing::Batch events(&ring_, blocks);
  for (std::uint32_t i = victim.keep; i < victim.count; ++i) {
    events.add({ChangeKind::kRemoved, Component::kFull, start + i, cut.hash(i), 0, id});
  }
  events.finish();
  fault_point(FaultPoint::evict_published);
  free_aux(id, victim.keep, victim.count, /*publish=*/true, freeing);
  finish(freeing);
  fault_point(FaultPoint::evict_aux);

  count_live(gone ? -1 : 0, -std::int64_t{blocks});
  if (!gone) {
    if (victim.keep > cut.floor()) eviction_.push_front(id);
    return blocks;
  }
  table_.erase(key, id);
  fault_point(FaultPoint::evict_table);
  if (parent != 0) {
    change_children(parent, start, -1);
    fault_point(FaultPoint::evict_parent);
    const Segment p = segment(parent);
    // A parent that was kept by its children alone is as recent as the last of them: next in turn,
    // so that an unused path goes from its end to its root. One that was used since waits again.
    const std::uint32_t touched = cut->touch.load(kRelaxed);
    const bool as_old = static_cast<std::int32_t>(touched - p->touch.load(kRelaxed)) >= 0;
    if (as_old) p->touch.store(touched, kRelaxed);
    if (p.head().count > p.floor()) {
      if (as_old) {
        eviction_.push_front(parent);
      } else {
        eviction_.push_back(parent);
      }
    }
  }
  arena_.push(id);
  return blocks;
}

std::uint32_t Tree::evict(std::uint32_t wanted) noexcept {
  return evict_until(wanted, /*for_segment=*/false, Protected{}, nullptr);
}

void Tree::truncate(std::span<const Victim> batch) noexcept {
  for (const Victim& victim : batch) {
    if (victim.segment == 0) continue;
    const Segment cut = segment(victim.segment);
    const std::uint64_t truncated =
        next_head(cut.head_word(), SegmentState::kLive, victim.keep, victim.count);
    log_.store_head(cut->head, mutant(Mutant::kNoVersionBump) ? truncated - (std::uint64_t{1} << 24)
                                                              : truncated);
    fault_point(FaultPoint::evict_first_truncated);
  }
  fault_point(FaultPoint::evict_truncated);
}

void Tree::spare_pinned(std::span<Victim> batch, bool truncated, EvictionLap& lap) noexcept {
  scan_protection([&](SegmentId id, std::uint32_t depth, std::uint32_t) {
    for (Victim& victim : batch) {
      if (victim.segment != id || depth <= victim.keep) continue;
      if (truncated) {
        const Segment pinned = segment(id);
        log_.store_head(pinned->head, next_head(pinned.head_word(), SegmentState::kLive,
                                                victim.count, victim.count));
      }
      control_->work.eviction_rollbacks.fetch_add(1, kRelaxed);
      eviction_.push_back(id);
      lap.pass_over(id);
      victim.segment = 0;
      fault_point(FaultPoint::evict_rolled_back);
    }
  });
}

std::uint32_t Tree::evict_until(std::uint32_t wanted, bool for_segment, Protected keep,
                                Grant* grant) noexcept {
  const std::uint32_t free_before = pool(Component::kFull).free_count();
  if (control_->zombies.load(kRelaxed) != 0 && !sweep()) return 0;
  std::uint32_t freed = pool(Component::kFull).free_count() - free_before;
  EvictionLap lap;
  while (for_segment ? !arena_.can_pop_any() : freed < wanted) {
    std::array<Victim, kMaxVictims> victims;
    collect_pins(kMaskFull);
    const std::uint32_t chosen =
        choose_victims(for_segment ? 0 : wanted - freed, for_segment, keep, victims, lap);
    if (chosen == 0) {
      commit();
      if (eviction_.front() == 0 || !lap.look_again()) break;
      continue;
    }
    control_->clock.fetch_add(1, kRelaxed);
    const std::span<Victim> batch(victims.data(), chosen);
    if (mutant(Mutant::kScanPinsBeforeTruncate)) spare_pinned(batch, /*truncated=*/false, lap);
    widen_race<16>();
    truncate(batch);
    if (!mutant(Mutant::kScanPinsBeforeTruncate)) spare_pinned(batch, /*truncated=*/true, lap);
    fault_point(FaultPoint::evict_scanned);

    std::uint32_t blocks = 0;
    std::uint32_t survivors = 0;
    for (const Victim& victim : batch) {
      if (victim.segment == 0) continue;
      blocks += free_victim(victim, grant);
      ++survivors;
    }
    freed += blocks;
    if (survivors != 0) lap.restart();
    control_->work.eviction_victims.fetch_add(survivors, kRelaxed);
    control_->work.evicted_blocks.fetch_add(blocks, kRelaxed);
    commit();
  }
  commit();
  // Who evicts once mostly does so again: the next victim is on its way until then.
  if (const SegmentId next = eviction_.front(); next != 0) {
    segment(next).prefetch();
    __builtin_prefetch(arena_.header(eviction_.next(next)));
  }
  return freed;
}

}  // namespace radixshmem
