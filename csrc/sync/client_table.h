// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The registered clients of an index and their pins. Entry 0 is the server's; the last one is for
// whoever inspects an index whose table is full (Session::inspect).
//
//   entry   state | generation | group | pid | exited || pin high water || counters     320 B
//   pins    u64[max_pins] per client: {segment, depth, mask}; 0 = empty
//
// A pin is an entry in its owner's own table, so there is no count to leak or underflow, and a dead
// client's pins vanish by clearing its table. It protects entries [0, depth) of its segment and,
// because eviction takes leaf tails only, all ancestors of it.
//
// Who may write: `state`, `generation`, `group`, `exited` the lock holder; pins, the high water
// mark and counters the client itself, and whoever reaps it (under the lock). `exited` also a
// client that closes and cannot get the lock.
// Order of a pin: raise the high water mark if needed (seq_cst), store the pin (seq_cst), then
// validate the path again. A scanner truncates (seq_cst), then loads the mark and the pins
// (seq_cst): one of the two sees the other (the classic StoreLoad pair; x86 needs it too).
// The mark falls only under the index lock, by the owner while none of its pins is out, or by the
// reaper.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <type_traits>
#include <vector>

#include "base/ids.h"
#include "layout/index_plan.h"
#include "layout/words.h"

namespace radixshmem {

enum class ClientState : std::uint32_t {
  kFree = 0,
  kLive = 1,
  kDead = 2,  // reaped, but its group lives on and may still write its slots
};

// Counters of one client, folded into the totals of the index when it goes.
enum class Counter : std::uint32_t {
  kQueries,
  kQueriedBlocks,
  kHitBlocks,
  kMissedBlocks,
  kRestarts,  // matches that were begun again
  kGaveUp,    // matches that became misses after too many restarts
  kInserts,
  kInsertedBlocks,
  kAllocatedSlots,
  kRecycledSlots,
  kBusy,
  kPinsFull,
  kLockTakeovers,
  kCount
};
inline constexpr std::size_t kCounters = static_cast<std::size_t>(Counter::kCount);
inline constexpr std::size_t kMaxCounters = 24;  // that there is room for
static_assert(kCounters <= kMaxCounters);

struct alignas(kCacheLine) ClientEntry {
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> generation;
  std::atomic<std::uint32_t> group;
  std::atomic<std::uint32_t> pid;     // as its own namespace numbers it; information only
  std::atomic<std::uint32_t> exited;  // 1: seen to have exited completely, or closed while busy
  alignas(kCacheLine) std::atomic<std::uint32_t> pin_high_water;
  alignas(kCacheLine) std::array<std::atomic<std::uint64_t>, kMaxCounters> counters;
};
static_assert(sizeof(ClientEntry) == kClientEntryBytes);
static_assert(std::is_standard_layout_v<ClientEntry>);

struct ClientRoot {
  std::atomic<std::uint32_t> ids_used;  // entries at and after it were never used
  // Folded counters of clients that went.
  std::array<std::atomic<std::uint64_t>, kMaxCounters> departed;
};

// Group id of an engine's group text, or of a client on its own.
[[nodiscard]] constexpr std::uint32_t group_of_text_hash(std::uint64_t hash) noexcept {
  return 0x80000000u | static_cast<std::uint32_t>(hash & 0x7fffffff);
}

class ClientTable final {
 public:
  ClientTable(ClientRoot* root, ClientEntry* entries, std::atomic<std::uint64_t>* pins,
              std::uint32_t max_clients, std::uint32_t max_pins) noexcept
      : root_(root),
        entries_(entries),
        pins_(pins),
        max_clients_(max_clients),
        max_pins_(max_pins) {}

  [[nodiscard]] std::uint32_t max_clients() const noexcept { return max_clients_; }
  [[nodiscard]] std::uint32_t max_pins() const noexcept { return max_pins_; }
  // Returns: one past the highest id ever used; never more than there are.
  [[nodiscard]] std::uint32_t ids_used() const noexcept {
    const std::uint32_t used = root_->ids_used.load(std::memory_order_acquire);
    return used < max_clients_ ? used : max_clients_;
  }
  [[nodiscard]] ClientEntry& entry(ClientId id) const noexcept { return entries_[id]; }
  [[nodiscard]] ClientState state(ClientId id) const noexcept {
    return static_cast<ClientState>(entries_[id].state.load(std::memory_order_acquire));
  }
  [[nodiscard]] std::atomic<std::uint64_t>& pin(ClientId id, std::uint32_t index) const noexcept {
    return pins_[std::uint64_t{id} * max_pins_ + index];
  }

  // Requires: the lock, a free entry whose byte the caller holds.
  void claim(ClientId id, std::uint32_t group, std::uint32_t pid) noexcept;
  // Requires: the lock; no slot carries the id any more. Folds counters, clears pins, frees.
  void free_entry(ClientId id) noexcept;
  // Requires: the lock. Returns: how many pins were cleared.
  std::uint32_t clear_pins(ClientId id) noexcept;
  // Requires: the lock. Whether a live client other than `except` is in `group`.
  [[nodiscard]] bool group_lives(std::uint32_t group, ClientId except) const noexcept;

  // Calls visit(client, PinWord) for every pin of every client. Loads are seq_cst: see "Order".
  template <typename Visit>
  void scan_pins(Visit visit) const noexcept {
    const std::uint32_t end = ids_used();
    for (ClientId id = 0; id < end; ++id) {
      const std::uint32_t marked = entries_[id].pin_high_water.load(std::memory_order_seq_cst);
      const std::uint32_t high = marked < max_pins_ ? marked : max_pins_;
      for (std::uint32_t i = 0; i < high; ++i) {
        const std::uint64_t word = pin(id, i).load(std::memory_order_seq_cst);
        if (word != 0) visit(id, PinWord::unpack(word));
      }
    }
  }

  // Returns: live and departed clients together.
  [[nodiscard]] std::uint64_t total(Counter counter) const noexcept;

 private:
  ClientRoot* root_;
  ClientEntry* entries_;
  std::atomic<std::uint64_t>* pins_;
  std::uint32_t max_clients_;
  std::uint32_t max_pins_;
};

// Which entries of its own pin table a client uses: process-local, never shared.
// Thread safety: all calls may run in parallel.
class PinAllocator final {
 public:
  PinAllocator(const ClientTable* table, ClientId self);

  // Takes out.size() entries, all or none, and raises the high water mark over them.
  [[nodiscard]] bool reserve(std::span<std::uint32_t> out) noexcept;
  // Returns entries whose pin words are empty again.
  void give_back(std::span<const std::uint32_t> indexes) noexcept;
  // Requires: the index lock. Lowers a high water mark that is worth it when no pin is out.
  void lower_high_water() noexcept;
  [[nodiscard]] std::uint32_t outstanding() const noexcept;

 private:
  const ClientTable* table_;
  ClientId self_;
  mutable std::mutex mutex_;
  std::vector<std::uint32_t> free_;  // lowest index on top
};

}  // namespace radixshmem
