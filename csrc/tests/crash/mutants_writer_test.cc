// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Deterministic deaths and evictions that each show one wrong rule of the writers or of recovery.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "tests/crash/events.h"
#include "tests/crash/lab.h"
#include "tests/crash/mutant_test.h"

namespace radixshmem::crash {
namespace {

// Dies between truncation and scan; then its log is lost. Pins of the cut entries must hold.
std::string log_lost_while_truncated(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  const Hit hit = lab.query(lab.reader(), path, kMaskFull, true);
  const bool died = lab.die_at(
      FaultPoint::evict_truncated, [](Session& s) { (void)s.evict(8, Component::kFull); },
      /*stress=*/true);
  TreeInspector::log(lab.tree()).entries.store(kUndoEntries + 1);
  const std::string violated = lab.first_violation();
  if (!died) return "the scenario did not happen";
  if (!violated.empty()) return violated;
  lab.release_quarantine();
  (void)lab.evict_all(lab.writer(), Component::kFull);
  (void)lab.take_and_spoil(lab.writer(), Component::kFull);
  return lab.wrong_bytes(hit, path);
}

// Dies while aux slots leave, `point` being how far it came; then its log is lost, and the next one
// dies in the rebuild. What is pinned must hold.
std::string log_lost_while_leaving(Mutant mutant, Component c, FaultPoint point) {
  Lab lab(mutant);
  const Path other = path_of(2, 8);
  const Path path = path_of(1, 8);
  for (const Path& each : {other, path}) {
    lab.put(lab.writer(), each);
    lab.put_aux(lab.writer(), each, c);
  }
  const std::uint32_t mask = kMaskFull | (c == Component::kSwa ? kMaskSwa : kMaskMamba);
  const Hit hit = lab.query(lab.reader(), path, mask, true);
  const bool died = lab.die_at(point, [c](Session& s) { (void)s.evict(12, c); }, /*stress=*/true);
  TreeInspector::log(lab.tree()).entries.store(kUndoEntries + 1);
  const bool again =
      lab.die_at(FaultPoint::rebuild_done, [](Session& s) { (void)s.locked([] {}); });
  if (!died || !again || hit.blocks != 8) return "the scenario did not happen";
  const std::string violated = lab.first_violation();
  if (!violated.empty()) return violated;
  lab.release_quarantine();
  (void)lab.evict_all(lab.writer(), c);
  (void)lab.take_and_spoil(lab.writer(), c);
  return lab.wrong_bytes(hit, path);
}

std::string log_lost_while_aux_leaves(Mutant mutant) {
  for (const Component c : {Component::kSwa, Component::kMamba}) {
    for (const FaultPoint point :
         {FaultPoint::aux_evict_truncated, FaultPoint::aux_evict_rolled_back,
          FaultPoint::aux_evict_scanned, FaultPoint::aux_evict_owner}) {
      const std::string wrong = log_lost_while_leaving(mutant, c, point);
      if (!wrong.empty()) return wrong + ", at " + fault_point_name(point);
    }
  }
  return {};
}

// No segment is free; the least recently used leaf is the one that an insert extends.
std::string insert_into_a_full_arena(Mutant mutant) {
  Lab lab(mutant, fan_options());
  Path longest = path_of(1, 128);
  lab.put(lab.writer(), longest);
  const Path prefix(longest.begin(), longest.begin() + 64);
  for (std::uint64_t fan = 0; lab.tree().arena().can_pop_any(); ++fan) {
    Path path = prefix;
    path.push_back(chain(prefix.back(), 5000 + fan));
    lab.put(lab.writer(), path);
    Path alone = path_of(10'000 + fan, 1);
    lab.put(lab.writer(), alone);
    if (lab.tree().pool(Component::kFull).free_count() < 4) return "the scenario did not happen";
  }
  longest.push_back(chain(longest.back(), 128));
  lab.put(lab.writer(), longest);
  return lab.first_violation();
}

// A child of the batch is pinned and spared; its ancestor must not be cut below it.
std::string spared_child_of_a_victim(Mutant mutant) {
  Options options = tiny_options();
  options.stress = true;  // the batch does not know of the pin beforehand
  Lab lab(mutant, options);
  const Path other = path_of(3, 1);
  const Path parent = path_of(1, 3);
  Path child(parent.begin(), parent.begin() + 1);
  child.push_back(chain(child[0], 999));
  lab.put(lab.writer(), other);
  lab.put(lab.writer(), parent);
  lab.put(lab.writer(), child);
  (void)lab.writer().evict(1, Component::kFull);  // the clock goes on
  (void)lab.reader().query(parent, {kMaskFull, false, /*update_recency=*/true});
  const Hit hit = lab.query(lab.reader(), child, kMaskFull, true);
  (void)lab.writer().evict(100, Component::kFull);
  if (hit.blocks != 2) return "the scenario did not happen";
  const std::string violated = lab.first_violation();
  if (!violated.empty()) return violated;
  (void)lab.take_and_spoil(lab.writer(), Component::kFull);
  return lab.wrong_bytes(hit, child);
}

// Breaks the second segment of a pinned path of 20 blocks and repairs.
std::string after_damage(Lab& lab, const Path& path, void (*damage)(SegmentHeader&)) {
  const bool done = lab.server().locked([&] {
    lab.tree().control().intent.store(kIntentRebuild);
    damage(*lab.tree().arena().header(TreeInspector::find(lab.tree(), path[16], 16)));
    lab.tree().repair();
  });
  return done ? lab.first_violation() : "busy";
}

std::string pinned_segment_with_a_bad_parent(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 20);
  lab.put(lab.writer(), path);
  const Hit hit = lab.query(lab.reader(), path, kMaskFull, true);
  const std::string violated =
      after_damage(lab, path, [](SegmentHeader& h) { h.parent.store(0x7fff0001); });
  if (!violated.empty()) return violated;
  (void)lab.evict_all(lab.writer(), Component::kFull);
  (void)lab.take_and_spoil(lab.writer(), Component::kFull);
  return lab.wrong_bytes(hit, path);
}

std::string pinned_zombie_under_a_live_parent(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 20);
  lab.put(lab.writer(), path);
  const Hit hit = lab.query(lab.reader(), path, kMaskFull, true);
  // It crosses a multiple of S now, but its parent still fits.
  const std::string violated = after_damage(lab, path, [](SegmentHeader& h) { h.start.store(14); });
  if (!violated.empty()) return violated;
  if (lab.tree().control().zombies.load() != 1) return "the scenario did not happen";
  (void)lab.evict_all(lab.writer(), Component::kFull);
  (void)lab.take_and_spoil(lab.writer(), Component::kFull);
  return lab.wrong_bytes(hit, path);
}

std::string death_inside_a_rebuild(Mutant mutant) {
  Lab lab(mutant);
  for (std::uint64_t i = 0; i < 20; ++i) lab.put(lab.writer(), path_of(i, 3));
  const bool first =
      lab.die_at(FaultPoint::rebuild_table, [](Session& s) { (void)s.check(/*repair=*/true); });
  const bool second =
      lab.die_at(FaultPoint::rebuild_middle, [](Session& s) { (void)s.locked([] {}); });
  if (!first || !second) return "the scenario did not happen";
  return lab.first_violation();
}

std::string death_after_the_commit_of_an_insert(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  const bool died = lab.die_at(FaultPoint::segment_head, [&](Session& s) { lab.put(s, path); });
  if (!died) return "the scenario did not happen";
  const std::string violated = lab.first_violation();
  if (!violated.empty()) return violated;
  return lab.query(lab.reader(), path, kMaskFull, false).blocks == 8 ? "" : "a stored path is lost";
}

std::string death_after_events_were_published(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  EventFollower events(lab.tree().ring());
  bool resynced = false;
  (void)events.compare(TreeInspector::blocks(lab.tree()), resynced);
  const bool died = lab.die_at(FaultPoint::evict_published,
                               [](Session& s) { (void)s.evict(8, Component::kFull); });
  if (!died) return "the scenario did not happen";
  const std::string violated = lab.first_violation();
  if (!violated.empty()) return violated;
  return events.compare(TreeInspector::blocks(lab.tree()), resynced);
}

std::string sweep_after_blocks_came_back(Mutant mutant) {
  Lab lab(mutant);
  const Path path = path_of(1, 8);
  lab.put(lab.writer(), path);
  lab.put_aux(lab.writer(), path, Component::kMamba);
  EventFollower events(lab.tree().ring());
  bool resynced = false;
  (void)events.compare(TreeInspector::blocks(lab.tree()), resynced);
  Hit hit = lab.query(lab.reader(), path, kMaskFull | kMaskMamba, true);
  (void)lab.writer().reset();
  lab.put(lab.writer(), path);
  lab.put_aux(lab.writer(), path, Component::kMamba);
  if (lab.tree().control().zombies.load() == 0) return "the scenario did not happen";
  hit.finalize();
  (void)lab.writer().locked([&] { lab.writer().tree().sweep(); });
  return events.compare(TreeInspector::blocks(lab.tree()), resynced);
}

// A forked child that lives on must not make its dead parent look alive.
std::string child_outlives_a_client(Mutant mutant) {
  Lab lab(mutant);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::array<int, 2> told{};
  if (::pipe(told.data()) != 0) return "no pipe";
  const pid_t parent = ::fork();
  if (parent == 0) {
    auto session = Session::attach(lab.name(), "", false);
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
    const std::array<std::int32_t, 2> words{static_cast<std::int32_t>(session.value()->client_id()),
                                            child};
    (void)!::write(told[1], words.data(), sizeof words);
    for (;;) ::pause();
  }
  std::array<std::int32_t, 2> words{};
  const bool read = ::read(told[0], words.data(), sizeof words) == sizeof words;
  ::close(told[0]);
  ::close(told[1]);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  // The child closes its copy when it comes to run: that may take a moment.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  bool alive = true;
  while (alive && std::chrono::steady_clock::now() < deadline) {
    alive = lab.index_server().client_alive(static_cast<ClientId>(words[0]));
  }
  ::kill(words[1], SIGKILL);
  ::waitpid(words[1], nullptr, 0);
  if (!read) return "the scenario did not happen";
  return alive ? "a dead client with a living child is taken for alive" : "";
}

}  // namespace

std::vector<MutantCase> writer_mutants() {
  return {{Mutant::kRebuildFreesTruncated, log_lost_while_truncated},
          {Mutant::kRebuildFreesLeaving, log_lost_while_aux_leaves},
          {Mutant::kInsertEvictsOwnPath, insert_into_a_full_arena},
          {Mutant::kFloorIgnoresBatchChildren, spared_child_of_a_victim},
          {Mutant::kRebuildFreesBadSegments, pinned_segment_with_a_bad_parent},
          {Mutant::kZombieForgetsAncestor, pinned_zombie_under_a_live_parent},
          {Mutant::kIntentClearedEarly, death_inside_a_rebuild},
          {Mutant::kNoCommitWord, death_after_the_commit_of_an_insert},
          {Mutant::kUndoWithoutOverflow, death_after_events_were_published},
          {Mutant::kSweepPublishes, sweep_after_blocks_came_back},
          {Mutant::kNoForkClose, child_outlives_a_client}};
}

}  // namespace radixshmem::crash
