// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What the next lock holder does after an owner died: one function, idempotent, itself killable.
//
//   R1  table sequence odd
//   R2  log not empty: its commit word is in place -> keep; else undo from the last entry to the
//       first (each with its own store of `entries`)
//   R3  an intent left over: full rebuild (rebuild.cc), intent = 0 only after it is complete
//   R4  table sequence even
//
// Recovery never frees slots of a client, dead or not: only the reaper does. Undoing an eviction
// is right because its slots have not left the lock; undoing an insert because its head was never
// LIVE.
#include "base/memory_orders.h"
#include "tree/tree.h"

namespace radixshmem {
void Tree::recover() noexcept {
  control_->work.recoveries.fetch_add(1, kRelaxed);
  table_.begin_move();
  fault_point(FaultPoint::recover_start);
  const UndoLog::Outcome outcome = log_.outcome();
  if (outcome == UndoLog::Outcome::kUnusable) {
    const std::uint32_t intent = control_->intent.load(kRelaxed);
    control_->intent.store(intent | kIntentRebuild | kIntentLogLost, kRelease);
  } else if (outcome == UndoLog::Outcome::kUndone) {
    control_->work.recoveries_undone.fetch_add(1, kRelaxed);
    if (ring_.head() != log_.ring_head() && !mutant(Mutant::kUndoWithoutOverflow)) {
      ring_.demand_resync();
    }
  } else if (outcome == UndoLog::Outcome::kCommitted) {
    control_->work.recoveries_committed.fetch_add(1, kRelaxed);
  }
  log_.resolve(outcome);
  log_.reset(ring_.head());
  if (control_->intent.load(kRelaxed) != kIntentNone) {
    if (mutant(Mutant::kIntentClearedEarly)) {
      const bool to_zombie = (control_->intent.load(kRelaxed) & kIntentReset) != 0;
      control_->intent.store(to_zombie ? kIntentReset : kIntentNone, kRelease);
    }
    rebuild();
    control_->intent.store(kIntentNone, kRelease);
  }
  table_.end_move();
  fault_point(FaultPoint::recover_end);
}

void Tree::repair() noexcept {
  control_->intent.store(kIntentRebuild, kRelease);
  rebuild();
  control_->intent.store(kIntentNone, kRelease);
  table_.end_move();
}

void Tree::quarantine_server_slots() noexcept {
  for (const Component c : kAllComponents) {
    for (SlotId slot = 0; slot < pool(c).size(); ++slot) {
      if (pool(c).owner(slot) != kOwnerServer) continue;
      control_->work.quarantined_slots.fetch_add(1, kRelaxed);
      pool(c).restore_owner(slot, kOwnerQuarantine);
    }
  }
}

}  // namespace radixshmem
