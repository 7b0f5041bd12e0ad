// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Named places in the protocol where a crash test may kill the process, and wrong protocols
// ("mutants") that such tests must catch. Both exist only in builds with RADIX_FAULT_POINTS;
// elsewhere they compile to nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sched.h>

namespace radixshmem {

// One per step whose interruption leaves a different shared state (docs/recovery.md).
// clang-format off
#define RADIX_FAULT_POINT_NAMES(X)                                                              \
  X(locked) X(logged) X(unlock_before_wake)                                                     \
  X(register_claimed) X(register_done) X(slots_held)                                            \
  X(alloc_owner) X(alloc_middle) X(recycle_owner)                                               \
  X(append_entries) X(append_commit_set) X(append_owner) X(append_head)                         \
  X(segment_page) X(segment_pop) X(segment_fill) X(segment_commit_set) X(segment_table)         \
  X(segment_table_move) X(segment_link) X(segment_owner) X(segment_head)                        \
  X(table_grow_begin) X(table_grow_middle) X(table_grow_end)                                    \
  X(evict_first_truncated) X(evict_truncated) X(evict_rolled_back) X(evict_scanned)             \
  X(evict_commit) X(evict_owner) X(evict_published) X(evict_aux) X(evict_table)                 \
  X(evict_parent) X(evict_free_segment) X(evict_free_page) X(evict_in_insert)                   \
  X(aux_commit_set) X(aux_side) X(aux_owner) X(aux_word)                                        \
  X(aux_evict_truncated) X(aux_evict_rolled_back) X(aux_evict_scanned) X(aux_evict_owner)       \
  X(aux_evict_side)                                                                             \
  X(recover_start) X(undo_middle) X(recover_end)                                                \
  X(rebuild_heads) X(rebuild_table) X(rebuild_middle) X(rebuild_lists) X(rebuild_done)          \
  X(reset_intent) X(reset_middle) X(reset_marked) X(reset_listed) X(reset_cleared)              \
  X(sweep_head) X(sweep_middle)                                                                 \
  X(pin_high_water) X(pin_published) X(pin_valid)                                               \
  X(reap_pins) X(reap_slots)
// clang-format on

enum class FaultPoint : std::uint32_t {
#define RADIX_ENUMERATOR(name) name,
  RADIX_FAULT_POINT_NAMES(RADIX_ENUMERATOR)
#undef RADIX_ENUMERATOR
      kCount
};
inline constexpr std::size_t kFaultPoints = static_cast<std::size_t>(FaultPoint::kCount);

// Returns: the name of the point, for reports.
[[nodiscard]] constexpr const char* fault_point_name(FaultPoint point) noexcept {
  constexpr const char* kNames[] = {
#define RADIX_NAME(name) #name,
      RADIX_FAULT_POINT_NAMES(RADIX_NAME)
#undef RADIX_NAME
  };
  return kNames[static_cast<std::size_t>(point)];
}

// Each names the rule that is left out. tests/crash says which test catches which.
enum class Mutant : std::uint32_t {
  kNone = 0,
  kScanPinsBeforeTruncate,     // E4 before E2
  kValidateDeepestOnly,        // P3 on the last segment of the path
  kRebuildFreesTruncated,      // rebuild keeps count instead of hi
  kRebuildFreesLeaving,        // rebuild drops aux slots that were leaving
  kInsertEvictsOwnPath,        // needseg eviction ignores the segment being extended
  kNoVersionBump,              // E2, E5 keep the version
  kHighWaterAfterValidate,     // pin_hw raised after P3
  kUndoRestoresVersion,        // undo writes the old head with its old version
  kIntentClearedEarly,         // intent = 0 before the rebuild is complete
  kNoAuxReload,                // P3 skips the aux words
  kNoSideReload,               // P3 skips the side ids
  kUndoWithoutOverflow,        // events of an undone transaction stay believed
  kFloorIgnoresBatchChildren,  // an ancestor is cut below children of the same batch
  kAuxPinDeepestOnly,          // a window pins only its last segment
  kNoArenaSequence,            // a page may change class under a reader unnoticed
  kZombieForgetsAncestor,      // a pinned zombie does not protect its live ancestor
  kAuxScanBeforeOnly,          // aux pins scanned before the words are cleared
  kRebuildFreesBadSegments,    // a segment with a bad parent is freed, not kept for its pins
  kNoCommitWord,               // the commit word is never looked at
  kNoForkClose,                // a forked child keeps the live file open
  kNoAuxVersionBump,           // clearing an aux word keeps its version
  kSweepPublishes,             // the sweep publishes removals that `cleared` already told
  kNoPinFence,                 // the pin is published without a StoreLoad barrier
};

// Where a directed test may act between two steps of a reader.
enum class ReaderPoint : std::uint32_t {
  kSegmentTaken,  // in a walk, before the next segment is looked for
  kSideLoaded,    // in a window, before the words of the side block
  kBeforePin,     // after match and window, right before the pins are stored
  kValidated,     // after validation, before the answer
};

#if defined(RADIX_FAULT_POINTS) && RADIX_FAULT_POINTS
namespace fault {
// Set by a test before any worker starts; called at every point.
inline void (*hook)(FaultPoint) = nullptr;
// Called at every reader point.
inline void (*reader_hook)(ReaderPoint) = nullptr;
inline Mutant active_mutant = Mutant::kNone;
// Widens race windows: no pin prefilter, yields between the segments of a match.
inline bool stress = false;
}  // namespace fault
inline void fault_point(FaultPoint point) {
  if (fault::hook != nullptr) fault::hook(point);
}
inline void reader_point(ReaderPoint point) {
  if (fault::reader_hook != nullptr) fault::reader_hook(point);
}
[[nodiscard]] inline bool mutant(Mutant which) noexcept {
  return fault::active_mutant == which;
}
[[nodiscard]] inline bool stress() noexcept {
  return fault::stress;
}
// Under stress lets others run, each kTurns-th time.
template <std::uint32_t kTurns>
void widen_race() noexcept {
  static thread_local std::uint32_t turn = 0;
  if (stress() && ++turn % kTurns == 0) ::sched_yield();
}
#else
inline void fault_point(FaultPoint) noexcept {}
inline void reader_point(ReaderPoint) noexcept {}
[[nodiscard]] constexpr bool mutant(Mutant) noexcept {
  return false;
}
[[nodiscard]] constexpr bool stress() noexcept {
  return false;
}
template <std::uint32_t kTurns>
void widen_race() noexcept {}
#endif

}  // namespace radixshmem
