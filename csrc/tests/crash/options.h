// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One configuration of a crash campaign.
#pragma once

#include <cstdint>
#include <string>

#include "layout/index_plan.h"
#include "sync/fault_point.h"
#include "tests/crash/blocks.h"

namespace radixshmem::crash {

struct Options {
  std::string label = "tiny";
  std::string name;  // of the region; made from the supervisor's pid when empty
  IndexPlan plan;
  PathShape shape;
  std::uint32_t workers = 6;
  double seconds = 10;
  std::uint64_t seed = 1;
  std::uint32_t rate = 20000;       // a process dies once in this many fault points
  std::uint32_t armed_at_once = 4;  // 0: no armed kills
  std::uint32_t calm = 1;           // resets, repairs and large evictions are so many times rarer
  std::uint32_t held_pins = 4;      // hits that a worker keeps pinned
  bool stop_owners = false;         // SIGSTOP lock holders
  bool spoil_logs = false;          // damage one undo log in four before its recovery
  bool damage = false;              // damage a segment, then repair
  bool stress = false;
  bool threads = false;  // threads of this process, nobody dies
  Mutant mutant = Mutant::kNone;
};

// S = 16, slots by the dozen: eviction, branches, continuations, page class changes, table growth
// and moves, side-block exhaustion.
[[nodiscard]] inline Options tiny_options() {
  Options o;
  o.plan.block_size = 16;
  o.plan.segment_blocks = 16;
  o.plan.slots = {220, 40, 12};
  o.plan.swa_window_blocks = 6;
  o.plan.max_clients = 40;
  o.plan.max_pins = 24;
  o.plan.ring_entries = 4096;
  o.plan.lock_timeout_ms = 1000;
  return o;
}

// S = 64: segments run out before slots do.
[[nodiscard]] inline Options fan_options() {
  Options o = tiny_options();
  o.label = "fan";
  o.plan.segment_blocks = 64;
  o.plan.slots = {3500, 120, 40};
  o.plan.swa_window_blocks = 20;
  o.plan.max_pins = 200;
  o.held_pins = 70;
  o.calm = 100;
  o.shape.roots = 2;
  o.shape.short_roots = 30;
  o.shape.max_blocks = 12;
  o.shape.fan_blocks = 64;
  o.shape.fans = 2500;
  return o;
}

}  // namespace radixshmem::crash
