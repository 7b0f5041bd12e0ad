// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "sync/owner_lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "sync/fault_point.h"

namespace radixshmem {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSpins = 50;
constexpr long kSleepNs = 20'000'000;
constexpr int kStarvation = 10;  // times the lock timeout

constexpr std::uint32_t low_half(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word);
}
constexpr std::uint32_t acquisition(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word >> 32);
}

void pause_cpu() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

// The futex word is the low half; on a big-endian machine it would be the second u32.
std::uint32_t* futex_of(std::atomic<std::uint64_t>& word) noexcept {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shared layout is little endian");
  return reinterpret_cast<std::uint32_t*>(&word);
}

// Returns: true when the sleep ran to its end.
bool sleep_on(std::atomic<std::uint64_t>& word, std::uint32_t expected) noexcept {
  const timespec limit{0, kSleepNs};
  const long rc = ::syscall(SYS_futex, futex_of(word), FUTEX_WAIT, expected, &limit, nullptr, 0);
  return rc < 0 && errno == ETIMEDOUT;
}

}  // namespace

std::uint64_t OwnerLock::owned_word(std::uint64_t word, bool waiters) const noexcept {
  return (std::uint64_t{acquisition(word)} + 1) << 32 | std::uint64_t{self_ + 1} << 1 |
         (waiters ? 1u : 0u);
}

bool OwnerLock::owner_is_dead(std::uint64_t word) const noexcept {
  const ClientId owner = (low_half(word) >> 1) - 1;
  return owner != self_ && !live_->held_elsewhere(owner);
}

bool OwnerLock::lock_local() {
  if (local_.try_lock()) return true;  // without a look at the clock
#if defined(__SANITIZE_THREAD__)
  // try_lock_for() waits by the steady clock, in a call that the thread sanitizer of g++ 12 does
  // not know: it would report every unlock. Waits by the system clock are known to it.
  const auto end = std::chrono::system_clock::now() + timeout_ * kStarvation;
  return local_.try_lock_until(end);
#else
  return local_.try_lock_for(timeout_ * kStarvation);
#endif
}

OwnerLock::Acquired OwnerLock::acquire() {
  if (!lock_local()) return Acquired::kBusy;
  const Acquired acquired = acquire_word();
  if (acquired == Acquired::kBusy) {
    local_.unlock();
  } else {
    fault_point(FaultPoint::locked);
  }
  return acquired;
}

OwnerLock::Acquired OwnerLock::acquire_word() {
  auto& word = root_->word;
  bool slept = false;
  int spins = 0;
  Clock::time_point started{};
  Clock::time_point changed{};
  std::uint32_t seen = 0;
  for (;;) {
    std::uint64_t now = word.load(std::memory_order_relaxed);
    if (low_half(now) == 0) {
      // A sleeper that gets the lock cannot know whether others still sleep.
      if (word.compare_exchange_weak(now, owned_word(now, slept), std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
        stuck_.reset();
        return Acquired::kClean;
      }
      continue;
    }
    const auto take_over = [&] {
      return word.compare_exchange_strong(now, owned_word(now, true), std::memory_order_acquire,
                                          std::memory_order_relaxed);
    };
    // No thread of this process holds it (local_ is ours): an earlier owner of this id died.
    if ((low_half(now) >> 1) == self_ + 1) {
      if (take_over()) return Acquired::kTakenOver;
      continue;
    }
    if (spins++ < kSpins) {
      pause_cpu();
      continue;
    }
    const auto time = Clock::now();
    if (started == Clock::time_point{}) started = time;
    if (changed == Clock::time_point{} || seen != acquisition(now)) {
      changed = time;
      seen = acquisition(now);
    }
    const bool stuck = time - changed > timeout_ || stuck_ == seen;
    if (stuck || time - started > timeout_ * kStarvation) {
      if (owner_is_dead(now) && take_over()) return Acquired::kTakenOver;
      if (stuck) stuck_ = seen;
      return Acquired::kBusy;
    }
    if ((now & 1) == 0) {
      if (!word.compare_exchange_weak(now, now | 1, std::memory_order_relaxed)) continue;
      now |= 1;
    }
    slept = true;
    if (sleep_on(word, low_half(now))) {
      now = word.load(std::memory_order_relaxed);
      if (low_half(now) != 0 && owner_is_dead(now) && take_over()) return Acquired::kTakenOver;
    }
  }
}

void OwnerLock::release() noexcept {
  constexpr std::uint64_t kNumberOnly = ~std::uint64_t{0xffffffff};
  const std::uint64_t old = root_->word.fetch_and(kNumberOnly, std::memory_order_release);
  if ((old & 1) != 0) {
    fault_point(FaultPoint::unlock_before_wake);
    ::syscall(SYS_futex, futex_of(root_->word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
  local_.unlock();
}

std::int64_t OwnerLock::owner() const noexcept {
  return std::int64_t{low_half(root_->word.load(std::memory_order_relaxed)) >> 1} - 1;
}

std::uint32_t OwnerLock::acquisitions() const noexcept {
  return acquisition(root_->word.load(std::memory_order_relaxed));
}

}  // namespace radixshmem
