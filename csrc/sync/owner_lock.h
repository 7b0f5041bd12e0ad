// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The writer lock of an index: a futex word that names its owner by client id.
//
//   acquisition number:32 | owner client id + 1:31 | waiters:1      the low half is the futex word
//
// glibc's robust mutexes name the owner by its namespace-local thread id: two containers that
// share the memory can both be thread 1. Client ids are unique in the region, and whether their
// owner lives is asked of the live file.
//
// Acquire: CAS from "free"; spin a little; set the waiters bit; sleep at most 20 ms. After each
// timed-out sleep an owner whose byte is free is dead: a CAS on the whole word (the acquisition
// number makes it ABA-safe) takes the lock over, and the caller must recover before it does
// anything else. Nobody waits without a timeout, since a killed unlocker or a killed woken waiter
// swallows a wake-up.
// Busy: the acquisition number has not changed for the lock timeout (a living but stopped owner
// is not robbed), or ten times that has passed in any case. Who has found an acquisition stuck does
// not wait for it again: an engine with many requests would stand still for the timeout of each.
// Release: one fetch_and on the whole word, then one wake if somebody slept. A death between the
// two costs a sleeper at most 20 ms.
// Threads of one client share its id, so they queue on a process-local mutex first.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

#include "base/ids.h"
#include "sync/live_file.h"

namespace radixshmem {

struct LockRoot {
  std::atomic<std::uint64_t> word;
};

class OwnerLock final {
 public:
  OwnerLock(LockRoot* root, const LiveFile* live, ClientId self,
            std::chrono::milliseconds timeout) noexcept
      : root_(root), live_(live), self_(self), timeout_(timeout) {}

  enum class Acquired { kClean, kTakenOver, kBusy };
  [[nodiscard]] Acquired acquire();
  // Requires: this object acquired it.
  void release() noexcept;

  // Returns: the client id that holds the lock, or -1. A hint.
  [[nodiscard]] std::int64_t owner() const noexcept;
  // Returns: how many times the lock was taken, modulo 2^32.
  [[nodiscard]] std::uint32_t acquisitions() const noexcept;

 private:
  // Keeps other threads of this process out.
  [[nodiscard]] bool lock_local();
  [[nodiscard]] Acquired acquire_word();
  [[nodiscard]] std::uint64_t owned_word(std::uint64_t word, bool waiters) const noexcept;
  [[nodiscard]] bool owner_is_dead(std::uint64_t word) const noexcept;

  LockRoot* root_;
  const LiveFile* live_;
  ClientId self_;
  std::chrono::milliseconds timeout_;
  std::timed_mutex local_;
  std::optional<std::uint32_t> stuck_;  // the acquisition that was given up; guarded by local_
};

}  // namespace radixshmem
