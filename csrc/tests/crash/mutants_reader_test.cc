// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Deterministic interleavings of one reader and one writer. Each is right under the protocol and
// shows wrong bytes or a broken invariant under its mutant.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/crash/lab.h"
#include "tests/crash/mutant_test.h"

namespace radixshmem::crash {
namespace {

constexpr std::uint32_t kFullSwa = kMaskFull | kMaskSwa;
constexpr std::uint32_t kFullMamba = kMaskFull | kMaskMamba;

// A pin that is published after an early scan of the pins and before the truncation.
std::string pin_between_scan_and_truncation(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  std::optional<Hit> pinned;
  on_fault_point = [&](FaultPoint point) {
    if (pinned || point != FaultPoint::logged ||
        TreeInspector::last_logged(lab.tree()) != UndoLog::kTagHead) {
      return;
    }
    pinned.emplace(lab.query(lab.reader(), path, kMaskFull, true));
  };
  (void)lab.writer().evict(8, Component::kFull);
  on_fault_point = nullptr;
  if (!pinned || !pinned->pinned()) return "the scenario did not happen";
  (void)lab.take_and_spoil(lab.writer(), Component::kFull);
  return lab.wrong_bytes(*pinned, path);
}

std::string aux_pin_between_scan_and_clearing(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  lab.put_aux(lab.writer(), path, Component::kMamba);
  std::optional<Hit> pinned;
  on_fault_point = [&](FaultPoint point) {
    if (pinned || point != FaultPoint::logged ||
        TreeInspector::last_logged(lab.tree()) != UndoLog::kTagAux) {
      return;
    }
    pinned.emplace(lab.query(lab.reader(), path, kFullMamba, true));
  };
  (void)lab.evict_all(lab.writer(), Component::kMamba);
  on_fault_point = nullptr;
  if (!pinned || !pinned->pinned()) return "the scenario did not happen";
  (void)lab.take_and_spoil(lab.writer(), Component::kMamba);
  return lab.wrong_bytes(*pinned, path);
}

// Between a reader's first and second segment the path goes and comes back in other slots.
std::string path_replaced_inside_a_walk(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 20);
  lab.put(lab.writer(), path);
  const Path stays = path_of(3, 20);  // so that no page is emptied, which a reader would notice
  lab.put(lab.writer(), stays);
  const Hit keeps = lab.query(lab.reader(), stays, kMaskFull, true);
  bool acted = false;
  on_reader_point = [&](ReaderPoint point) {
    if (point != ReaderPoint::kSegmentTaken || acted) return;
    acted = true;
    (void)lab.evict_all(lab.writer(), Component::kFull);
    lab.put(lab.writer(), path_of(2, 30));
    lab.put(lab.writer(), path);
  };
  const Hit hit = lab.query(lab.reader(), path, kMaskFull, true);
  on_reader_point = nullptr;
  if (!acted || hit.blocks != path.size()) return "the scenario did not happen";
  return lab.wrong_bytes(hit, path);
}

// The slots of an unpinned answer are evicted and used again.
std::string copy_of_evicted_slots(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  const Hit hit = lab.query(lab.reader(), path, kMaskFull, false);
  (void)lab.evict_all(lab.writer(), Component::kFull);
  (void)lab.take_and_spoil(lab.writer(), Component::kFull);
  if (lab.wrong_bytes(hit, path).empty()) return "the scenario did not happen";
  return hit.validate() ? "a copy of reused slots was validated" : "";
}

// An aux slot goes, holds other bytes, and comes back to the same entry.
std::string copy_of_a_returning_aux_slot(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  lab.put_aux(lab.writer(), path, Component::kMamba);
  const Hit hit = lab.query(lab.reader(), path, kFullMamba, false);
  const auto slot = static_cast<std::int32_t>(*hit.window.mamba);
  (void)lab.evict_all(lab.writer(), Component::kMamba);
  (void)lab.take_and_spoil(lab.writer(), Component::kMamba);
  if (lab.wrong_bytes(hit, path).empty()) return "the scenario did not happen";
  write_slot(lab.board(), Component::kMamba, slot, path.back(), 4711);
  (void)lab.writer().insert(path, std::vector<std::int32_t>{slot}, 0, true, Component::kMamba);
  return hit.validate() ? "a copy made while the slot was another's was validated" : "";
}

// The eviction runs between the validation of a pin and what comes after it.
std::string eviction_after_validation(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  bool acted = false;
  on_reader_point = [&](ReaderPoint point) {
    if (point != ReaderPoint::kValidated || acted) return;
    acted = true;
    (void)lab.evict_all(lab.writer(), Component::kFull);
    (void)lab.take_and_spoil(lab.writer(), Component::kFull);
  };
  const Hit hit = lab.query(lab.reader(), path, kMaskFull, true);
  on_reader_point = nullptr;
  if (!acted || !hit.pinned()) return "the scenario did not happen";
  return lab.wrong_bytes(hit, path);
}

// Aux slots are evicted and used again between match and pin.
std::string aux_reused_before_the_pin(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  lab.put_aux(lab.writer(), path, Component::kMamba);
  bool acted = false;
  on_reader_point = [&](ReaderPoint point) {
    if (point != ReaderPoint::kBeforePin || acted) return;
    acted = true;
    (void)lab.evict_all(lab.writer(), Component::kMamba);
    (void)lab.take_and_spoil(lab.writer(), Component::kMamba);
  };
  const Hit hit = lab.query(lab.reader(), path, kFullMamba, true);
  on_reader_point = nullptr;
  if (!acted) return "the scenario did not happen";
  return lab.wrong_bytes(hit, path);
}

// A side block moves to another path between the load of its id and of its words.
std::string side_block_moves(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 6);
  const Path other = path_of(2, 6);
  lab.put(lab.writer(), path);
  lab.put(lab.writer(), other);
  lab.put_aux(lab.writer(), path, Component::kSwa);
  bool acted = false;
  bool moved = false;
  on_reader_point = [&](ReaderPoint point) {
    if (point != ReaderPoint::kSideLoaded || acted) return;
    acted = true;
    const SegmentId from = TreeInspector::find(lab.tree(), path[0], 0);
    const SideId side = TreeInspector::side_of(lab.tree(), from);
    (void)lab.evict_all(lab.writer(), Component::kSwa);
    lab.put_aux(lab.writer(), other, Component::kSwa);
    const SegmentId to = TreeInspector::find(lab.tree(), other[0], 0);
    moved = TreeInspector::side_of(lab.tree(), to) == side;
  };
  const Hit hit = lab.query(lab.reader(), path, kFullSwa, true);
  on_reader_point = nullptr;
  if (!moved) return "the scenario did not happen";
  return lab.wrong_bytes(hit, path);
}

// A window over two segments; the aux slots of the first one are wanted.
std::string window_over_two_segments(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 18);
  lab.put(lab.writer(), path);
  lab.put_aux(lab.writer(), path, Component::kSwa);
  const Hit hit = lab.query(lab.reader(), path, kFullSwa, true);
  if (hit.window.swa_slots.size() != 6) return "the scenario did not happen";
  (void)lab.evict_all(lab.writer(), Component::kSwa);
  (void)lab.take_and_spoil(lab.writer(), Component::kSwa);
  return lab.wrong_bytes(hit, path);
}

// A page goes to another class; a slot pair in it looks like the head that a reader remembers.
std::string page_changes_class(Mutant mutant) {
  Lab lab(mutant);
  constexpr std::uint32_t kUnit = 3;   // lies in the slot pairs of the page's first segment
  constexpr std::uint32_t kEntry = 5;  // the slot that its high half then is
  constexpr SlotId kSlot = 77;
  Path path;
  for (std::uint32_t i = 0; i <= kUnit; ++i) {
    path = path_of(10 + i, 1);
    lab.put(lab.writer(), path);
  }
  const SegmentId id = TreeInspector::find(lab.tree(), path[0], 0);
  if (id % kPageUnits != kUnit) return "the scenario did not happen: segment " + std::to_string(id);
  lab.tree().arena().header(id)->head.store(
      SegmentHead{kSlot << 8, SegmentState::kLive, 1, 1}.pack());
  Match match;
  std::int32_t slot = -1;
  (void)lab.reader().tree().match(path, nullptr, &slot, match);
  (void)lab.evict_all(lab.writer(), Component::kFull);
  std::vector<std::int32_t> slots = lab.take_and_spoil(lab.writer(), Component::kFull);
  std::iter_swap(std::find(slots.begin(), slots.end(), static_cast<std::int32_t>(kSlot)),
                 slots.begin() + kEntry);
  const Path long_path = path_of(20, 16);
  slots.resize(16);
  (void)lab.writer().insert(long_path, slots, 0, true, Component::kFull);
  const std::uint64_t now = lab.tree().arena().header(id)->head.load();
  if (match.end != 1 || head_version(now) != kSlot << 8) return "the scenario did not happen";
  return lab.reader().tree().validate(match, Window{}) ? "a dead segment was validated" : "";
}

// A reader knows the version that an undo might restore and the next eviction would repeat.
std::string version_known_from_an_undone_state(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  const bool died = lab.die_at(FaultPoint::evict_truncated,
                               [](Session& s) { (void)s.evict(4, Component::kFull); });
  Match match;
  std::vector<std::int32_t> slots(path.size());
  Tree& tree = lab.reader().tree();
  (void)tree.match(path, nullptr, slots.data(), match);
  if (!died || match.end != 4) return "the scenario did not happen";
  const std::string violated = lab.first_violation();
  if (!violated.empty()) return violated;
  bool holds_pin = false;
  on_fault_point = [&](FaultPoint point) {
    if (point != FaultPoint::evict_scanned) return;
    const ClientId me = lab.reader().client_id();
    tree.clients().entry(me).pin_high_water.store(1);
    tree.clients().pin(me, 0).store(PinWord{match.steps[0].segment, 4, kMaskFull}.pack());
    holds_pin = tree.validate(match, Window{});
  };
  (void)lab.writer().evict(6, Component::kFull);
  on_fault_point = nullptr;
  (void)lab.take_and_spoil(lab.writer(), Component::kFull);
  if (!holds_pin) return {};
  for (std::uint32_t i = 0; i < 4; ++i) {
    if (!holds(read_slot(lab.board(), Component::kFull, slots[i]), Component::kFull, path[i])) {
      return "slot " + std::to_string(i) + " of a validated pin was freed";
    }
  }
  return {};
}

}  // namespace

std::vector<MutantCase> reader_mutants() {
  return {{Mutant::kScanPinsBeforeTruncate, pin_between_scan_and_truncation},
          {Mutant::kAuxScanBeforeOnly, aux_pin_between_scan_and_clearing},
          {Mutant::kValidateDeepestOnly, path_replaced_inside_a_walk},
          {Mutant::kNoVersionBump, copy_of_evicted_slots},
          {Mutant::kNoAuxVersionBump, copy_of_a_returning_aux_slot},
          {Mutant::kHighWaterAfterValidate, eviction_after_validation},
          {Mutant::kNoAuxReload, aux_reused_before_the_pin},
          {Mutant::kNoSideReload, side_block_moves},
          {Mutant::kAuxPinDeepestOnly, window_over_two_segments},
          {Mutant::kNoArenaSequence, page_changes_class},
          {Mutant::kUndoRestoresVersion, version_known_from_an_undone_state}};
}

}  // namespace radixshmem::crash
