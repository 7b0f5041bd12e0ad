// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Reset: drop the tree at once, keep pinned bytes until their pins go.
//
//   R1  intent = RESET                     (the log is empty)
//   R2  every LIVE head -> {version + 1, ZOMBIE}      R3  lists and table emptied
//   R4  publish `cleared`, intent = 0      R5  sweep: free what no pin protects
//
// Killed between R1 and R4: recovery turns what is still LIVE into ZOMBIE and rebuilds.
// The sweep frees one zombie per transaction, keeps pinned zombies and their ancestors, and
// publishes nothing: `cleared` has said it. A repair of damaged memory makes zombies too; while one
// of these is pinned and does not know its parent, nobody can tell which FULL blocks its readers
// use: then nothing is swept, and evict.cc takes nothing.
#include "base/memory_orders.h"
#include "tree/tree.h"

namespace radixshmem {
namespace {
constexpr auto kInZombies = static_cast<std::uint8_t>(InList::kZombies);
}  // namespace

void Tree::link_zombie(SegmentId id) noexcept {
  SegmentHeader* h = arena_.header(id);
  const SegmentId first = control_->zombie_head.load(kRelaxed);
  h->lru_prev.store(0, kRelease);
  h->lru_next.store(first, kRelease);
  if (first != 0) arena_.header(first)->lru_prev.store(id, kRelease);
  control_->zombie_head.store(id, kRelease);
  h->in_list.store(kInZombies, kRelease);
  control_->zombies.store(control_->zombies.load(kRelaxed) + 1, kRelease);
}

void Tree::reset() noexcept {
  control_->work.resets.fetch_add(1, kRelaxed);
  control_->intent.store(kIntentReset, kRelease);
  fault_point(FaultPoint::reset_intent);
  arena_.for_each([&](SegmentId, Segment live) {
    const std::uint64_t word = live.head_word();
    const SegmentHead head = SegmentHead::unpack(word);
    if (!head.live()) return;
    live->head.store(next_head(word, SegmentState::kZombie, head.count, head.count),
                     std::memory_order_seq_cst);
    fault_point(FaultPoint::reset_middle);
  });
  fault_point(FaultPoint::reset_marked);
  arena_.for_each([&](SegmentId id, Segment zombie) {
    if (zombie.head().state != SegmentState::kZombie ||
        zombie->in_list.load(kRelaxed) == kInZombies) {
      return;
    }
    link_zombie(id);
    zombie.clear_branches();
    const SideId side = zombie->side.load(kRelaxed);
    if (side == 0) return;
    for (auto& pool : sides_.block(side).pools) pool.in_list.store(0, kRelease);
  });
  sides_.forget_lists();
  fault_point(FaultPoint::reset_listed);
  table_.begin_move();
  table_.clear();
  eviction_.forget_all();
  control_->live_segments.store(0, kRelease);
  control_->live_blocks.store(0, kRelease);
  table_.end_move();
  fault_point(FaultPoint::reset_cleared);
  ring_.publish({ChangeKind::kCleared, Component::kFull, 0, 0, 0, 0});
  log_.reset(ring_.head());
  control_->intent.store(kIntentNone, kRelease);
  sweep();
}

void Tree::free_zombie(SegmentId id) noexcept {
  const Segment zombie = segment(id);
  const std::uint64_t word = zombie.head_word();
  const std::uint32_t count = SegmentHead::unpack(word).count;
  log_.store_head(zombie->head, next_head(word, SegmentState::kFree, 0, 0));
  fault_point(FaultPoint::sweep_head);
  FreeingSet freeing = begin_freeing();
  freeing[0].add(SlotRun(zombie, 0, count).ids(), FaultPoint::sweep_middle);
  free_aux(id, 0, count, mutant(Mutant::kSweepPublishes), freeing);
  finish(freeing);
  const SegmentId prev = zombie->lru_prev.load(kRelaxed);
  const SegmentId next = zombie->lru_next.load(kRelaxed);
  log_.store(prev != 0 ? arena_.header(prev)->lru_next : control_->zombie_head, next);
  if (next != 0) log_.store(arena_.header(next)->lru_prev, prev);
  log_.store(zombie->in_list, static_cast<std::uint8_t>(InList::kNone));
  log_.store(control_->zombies, control_->zombies.load(kRelaxed) - 1);
  arena_.push(id);
  commit();
}

bool Tree::sweep() noexcept {
  constexpr std::uint64_t kKeep = 1;
  bool lost = false;
  for (SegmentId id = control_->zombie_head.load(kRelaxed); id != 0;
       id = arena_.header(id)->lru_next.load(kRelaxed)) {
    scratch_words_[id] = 0;
  }
  clients_.scan_pins([&](ClientId, PinWord pin) {
    for (SegmentId id = pin.segment; arena_.valid(id); id = segment(id).parent()) {
      if (segment(id).head().state != SegmentState::kZombie || scratch_words_[id] == kKeep) break;
      scratch_words_[id] = kKeep;
      lost = lost || !parent_fits(segment(id));
    }
  });
  if (lost) return false;
  SegmentId next = 0;
  for (SegmentId id = control_->zombie_head.load(kRelaxed); id != 0; id = next) {
    next = arena_.header(id)->lru_next.load(kRelaxed);
    if (scratch_words_[id] != kKeep) free_zombie(id);
  }
  return true;
}

}  // namespace radixshmem
