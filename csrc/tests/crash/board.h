// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What the processes of a crash campaign share beside the index: orders to die, counts, verdicts,
// and the bytes of the slots.
//
//   anonymous shared memory, made by the supervisor before it forks anybody
//
// Every process may write counts and the first violation; only the supervisor writes orders. A
// process that is killed leaves nothing here that needs repair.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/ids.h"
#include "sync/fault_point.h"

namespace radixshmem::crash {

inline constexpr std::uint32_t kMaxSlots = 4096;
inline constexpr std::uint32_t kMaxWorkers = 16;

// What happened, for the report.
// clang-format off
#define RADIX_CRASH_TALLIES(X)                                                                   \
  X(queries) X(hits) X(aux_queries) X(aux_hits) X(held_pins) X(extends) X(extends_stale)         \
  X(copies_valid) X(copies_stale) X(inserts) X(inserts_busy) X(inserts_full) X(aux_inserts)      \
  X(recycles) X(evictions) X(resets) X(repairs) X(shrinks) X(damages) X(reattached) X(forks)     \
  X(live_file_opened) X(busy) X(pins_full) X(logs_spoiled) X(checks) X(checks_busy)              \
  X(ring_agreed) X(ring_resynced) X(reaped) X(reaped_slots) X(quarantine_released)               \
  X(servers_adopted) X(stops) X(kills_armed) X(kills_by_rate) X(kills_outside) X(takeovers)      \
  X(recoveries_undone) X(recoveries_committed) X(rebuilds) X(rollbacks) X(table_moves)           \
  X(table_growths)
// clang-format on

enum class Tally : std::uint32_t {
#define RADIX_ENUMERATOR(name) name,
  RADIX_CRASH_TALLIES(RADIX_ENUMERATOR)
#undef RADIX_ENUMERATOR
      kCount
};
inline constexpr std::size_t kTallies = static_cast<std::size_t>(Tally::kCount);
[[nodiscard]] const char* tally_name(Tally tally) noexcept;

// Two words per slot: the block it holds and which write of it this is.
struct SlotBytes {
  std::atomic<std::uint64_t> sealed;  // block hash mixed with the generation
  std::atomic<std::uint64_t> generation;
};

struct WorkerState {
  std::atomic<std::int32_t> pid;    // 0: seen to have exited
  std::atomic<std::uint64_t> beat;  // operations begun
  std::atomic<std::uint32_t> stopped;
};

struct Board {
  std::atomic<std::uint32_t> stop;
  std::atomic<std::uint32_t> violated;  // kClaimed, then kTold
  std::array<char, 512> violation;
  std::atomic<std::int32_t> server_pid;
  std::atomic<std::uint32_t> server_stop;
  std::atomic<std::uint64_t> server_beat;
  std::atomic<std::uint64_t> checker_beat;
  std::array<WorkerState, kMaxWorkers> workers;
  std::array<std::atomic<std::int32_t>, kFaultPoints> armed;  // kills wanted at the point
  std::array<std::atomic<std::uint64_t>, kFaultPoints> passed;
  std::array<std::atomic<std::uint64_t>, kFaultPoints> killed;
  std::array<std::atomic<std::uint64_t>, kTallies> tallies;
  std::array<std::array<SlotBytes, kMaxSlots>, kComponents> slots;

  // Records the first violation of the run; printf-like.
  [[gnu::format(printf, 2, 3)]] void violate(const char* format, ...) noexcept;
  // Returns: the first violation, empty when there was none. To be called before the processes that
  // may be telling theirs are killed; one that was killed while it told counts all the same.
  [[nodiscard]] std::string verdict() const;
  void count(Tally tally, std::uint64_t amount = 1) noexcept {
    tallies[static_cast<std::size_t>(tally)].fetch_add(amount, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t tally(Tally tally) const noexcept {
    return tallies[static_cast<std::size_t>(tally)].load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool stopping() const noexcept {
    return stop.load(std::memory_order_relaxed) != 0 ||
           violated.load(std::memory_order_relaxed) != 0;
  }
  // Returns: whether `pid` is a child that the supervisor has not yet waited for.
  [[nodiscard]] bool runs(std::int32_t pid) const noexcept;
};

// Maps a zeroed board. Aborts when there is no memory.
[[nodiscard]] Board* make_board();
void free_board(Board* board) noexcept;

// xorshift64*: one per process or thread.
class Dice final {
 public:
  explicit Dice(std::uint64_t seed) noexcept : state_(seed * 0x9e3779b97f4a7c15u | 1) {
    for (int i = 0; i < 5; ++i) (void)next();
  }
  std::uint64_t next() noexcept {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du;
  }
  // Returns: a number below `bound`.
  std::uint32_t below(std::uint32_t bound) noexcept {
    return static_cast<std::uint32_t>((next() >> 33) % bound);
  }
  bool one_in(std::uint32_t n) noexcept { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

// Makes this process mortal: it dies at armed points, and at any point once in `rate` passes (more
// often inside recovery). rate 0: armed points only.
void make_mortal(Board* board, std::uint64_t seed, std::uint32_t rate) noexcept;
// Called in the taker's recovery before it looks at the log.
void set_recovery_hook(void (*spoil)(Dice&)) noexcept;

}  // namespace radixshmem::crash
