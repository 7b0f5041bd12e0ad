// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The private root page of an index: lock, sequences, list heads, counters. Never registered for
// access by peers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "arena/page_arena.h"
#include "slots/slot_pool.h"
#include "sync/change_ring.h"
#include "sync/client_table.h"
#include "sync/owner_lock.h"

namespace radixshmem {

// What a dead lock holder was in the middle of, besides the undo log.
enum Intent : std::uint32_t {
  kIntentNone = 0,
  kIntentReset = 1,    // finish the reset: every LIVE segment becomes ZOMBIE
  kIntentRebuild = 2,  // run (again) the full rebuild
  kIntentLogLost = 4,  // the log was not usable: unreferenced slots go to quarantine
};

struct TableRoot {
  std::atomic<std::uint32_t> sequence;   // odd while entries move
  std::atomic<std::uint32_t> line_mask;  // lines in use - 1
};

struct ListRoot {
  std::atomic<std::uint32_t> head;
  std::atomic<std::uint32_t> tail;
};

struct SideRoot {
  std::atomic<std::uint32_t> free_head;
  std::atomic<std::uint32_t> free_count;
  std::array<ListRoot, 2> lists;  // by aux pool
};

// Totals of work done under the lock; plain additions by the holder.
struct WorkCounters {
  // By component: allocations that had to evict first.
  std::array<std::atomic<std::uint64_t>, kComponents> demand_evictions;
  std::atomic<std::uint64_t> eviction_victims;  // segments truncated or freed
  std::atomic<std::uint64_t> eviction_steps;    // list entries looked at to find them
  std::atomic<std::uint64_t> eviction_rollbacks;
  std::atomic<std::uint64_t> evicted_blocks;
  std::atomic<std::uint64_t> recoveries;
  std::atomic<std::uint64_t> recoveries_undone;
  std::atomic<std::uint64_t> recoveries_committed;
  std::atomic<std::uint64_t> rebuilds;
  std::atomic<std::uint64_t> resets;
  std::atomic<std::uint64_t> table_moves;
  std::atomic<std::uint64_t> table_growths;
  std::atomic<std::uint64_t> quarantined_slots;
};

struct Control {
  alignas(kCacheLine) LockRoot lock;
  alignas(kCacheLine) TableRoot table;  // read by every match
  ArenaRoot arena;
  alignas(kCacheLine) std::atomic<std::uint32_t> clock;  // rises with every batch of victims
  alignas(kCacheLine) std::atomic<std::uint32_t> intent;
  std::atomic<std::uint32_t> zombies;
  std::atomic<std::uint32_t> zombie_head;
  std::atomic<std::uint32_t> live_segments;
  std::atomic<std::uint32_t> live_blocks;
  ListRoot eviction;
  SideRoot sides;
  std::array<SlotPoolRoot, kComponents> pools;
  alignas(kCacheLine) RingRoot ring;
  alignas(kCacheLine) WorkCounters work;
  alignas(kCacheLine) ClientRoot clients;
};
static_assert(sizeof(Control) <= kControlBytes);
static_assert(std::is_standard_layout_v<Control>);

}  // namespace radixshmem
