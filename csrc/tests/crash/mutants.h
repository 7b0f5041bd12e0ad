// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The wrong protocols by name.
#pragma once

#include <optional>
#include <string_view>
#include <utility>

#include "sync/fault_point.h"

namespace radixshmem::crash {

inline constexpr std::pair<Mutant, const char*> kMutants[] = {
    {Mutant::kScanPinsBeforeTruncate, "scan_pins_before_truncate"},
    {Mutant::kValidateDeepestOnly, "validate_deepest_only"},
    {Mutant::kRebuildFreesTruncated, "rebuild_frees_truncated"},
    {Mutant::kRebuildFreesLeaving, "rebuild_frees_leaving"},
    {Mutant::kInsertEvictsOwnPath, "insert_evicts_own_path"},
    {Mutant::kNoVersionBump, "no_version_bump"},
    {Mutant::kHighWaterAfterValidate, "high_water_after_validate"},
    {Mutant::kUndoRestoresVersion, "undo_restores_version"},
    {Mutant::kIntentClearedEarly, "intent_cleared_early"},
    {Mutant::kNoAuxReload, "no_aux_reload"},
    {Mutant::kNoSideReload, "no_side_reload"},
    {Mutant::kUndoWithoutOverflow, "undo_without_overflow"},
    {Mutant::kFloorIgnoresBatchChildren, "floor_ignores_batch_children"},
    {Mutant::kAuxPinDeepestOnly, "aux_pin_deepest_only"},
    {Mutant::kNoArenaSequence, "no_arena_sequence"},
    {Mutant::kZombieForgetsAncestor, "zombie_forgets_ancestor"},
    {Mutant::kAuxScanBeforeOnly, "aux_scan_before_only"},
    {Mutant::kRebuildFreesBadSegments, "rebuild_frees_bad_segments"},
    {Mutant::kNoCommitWord, "no_commit_word"},
    {Mutant::kNoForkClose, "no_fork_close"},
    {Mutant::kNoAuxVersionBump, "no_aux_version_bump"},
    {Mutant::kSweepPublishes, "sweep_publishes"},
    {Mutant::kNoPinFence, "no_pin_fence"},
};

[[nodiscard]] inline std::optional<Mutant> mutant_named(std::string_view name) {
  for (const auto& [mutant, known] : kMutants) {
    if (name == known) return mutant;
  }
  return std::nullopt;
}

}  // namespace radixshmem::crash
