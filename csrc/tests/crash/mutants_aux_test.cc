// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The reader mutants of aux slots once more, seen by a query for all slots of a path.
#include <optional>
#include <string>
#include <vector>

#include "tests/crash/lab.h"
#include "tests/crash/mutant_test.h"

namespace radixshmem::crash {
namespace {

constexpr Component kSwa = Component::kSwa;
constexpr Component kMamba = Component::kMamba;
constexpr const char* kNotHappened = "the scenario did not happen";

// Returns: how many slots the answer has.
std::size_t slots_in(const Hit& hit) {
  std::size_t count = 0;
  for (const std::int32_t slot : hit.window.aux_slots) count += slot >= 0 ? 1u : 0u;
  return count;
}

// Slots in two segments; all that can be had of them are wanted.
std::string slots_in_two_segments(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 18);
  lab.put(lab.writer(), path);
  lab.put_aux(lab.writer(), path, kSwa);
  const Hit hit = lab.query_aux(lab.reader(), path, kSwa, true);
  if (slots_in(hit) != 6) return kNotHappened;
  (void)lab.evict_all(lab.writer(), kSwa);
  (void)lab.take_and_spoil(lab.writer(), kSwa);
  return lab.wrong_bytes(hit, path);
}

// A pin that is published while an eviction is between its looks at pins and at words.
std::string pin_between_scan_and_clearing(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  lab.put_aux(lab.writer(), path, kMamba);
  std::optional<Hit> pinned;
  on_fault_point = [&](FaultPoint point) {
    if (pinned || point != FaultPoint::logged ||
        TreeInspector::last_logged(lab.tree()) != UndoLog::kTagAux) {
      return;
    }
    pinned.emplace(lab.query_aux(lab.reader(), path, kMamba, true));
  };
  (void)lab.evict_all(lab.writer(), kMamba);
  on_fault_point = nullptr;
  if (!pinned || !pinned->pinned()) return kNotHappened;
  (void)lab.take_and_spoil(lab.writer(), kMamba);
  return lab.wrong_bytes(*pinned, path);
}

// The slots are evicted and used again between the look at them and the pin.
std::string reused_before_the_pin(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  lab.put_aux(lab.writer(), path, kSwa);
  bool acted = false;
  on_reader_point = [&](ReaderPoint point) {
    if (point != ReaderPoint::kBeforePin || acted) return;
    acted = true;
    (void)lab.evict_all(lab.writer(), kSwa);
    (void)lab.take_and_spoil(lab.writer(), kSwa);
  };
  const Hit hit = lab.query_aux(lab.reader(), path, kSwa, true);
  on_reader_point = nullptr;
  if (!acted || hit.blocks != path.size()) return kNotHappened;
  return lab.wrong_bytes(hit, path);
}

// A slot goes, holds other bytes, and comes back to the same block.
std::string copy_of_a_returning_slot(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  lab.put_aux(lab.writer(), path, kMamba);
  const Hit hit = lab.query_aux(lab.reader(), path, kMamba, false);
  const std::int32_t slot = hit.window.aux_slots.back();
  (void)lab.evict_all(lab.writer(), kMamba);
  (void)lab.take_and_spoil(lab.writer(), kMamba);
  if (lab.wrong_bytes(hit, path).empty()) return kNotHappened;
  write_slot(lab.board(), kMamba, slot, path.back(), 4711);
  (void)lab.writer().insert(path, std::vector<std::int32_t>{slot}, 0, true, kMamba);
  return hit.validate() ? "a copy made while the slot was another's was validated" : "";
}

}  // namespace

std::vector<MutantCase> aux_reader_mutants() {
  return {{Mutant::kAuxPinDeepestOnly, slots_in_two_segments},
          {Mutant::kAuxScanBeforeOnly, pin_between_scan_and_clearing},
          {Mutant::kNoAuxReload, reused_before_the_pin},
          {Mutant::kNoAuxVersionBump, copy_of_a_returning_slot}};
}

}  // namespace radixshmem::crash
