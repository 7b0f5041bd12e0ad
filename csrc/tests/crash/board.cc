// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tests/crash/board.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

#include "base/check.h"
#include "base/memory_orders.h"

namespace radixshmem::crash {
namespace {

constexpr std::uint32_t kClaimed = 1;  // of Board::violated
constexpr std::uint32_t kTold = 2;

Board* mortal_board = nullptr;
std::uint32_t mortal_rate = 0;
Dice mortal_dice(1);
void (*recovery_hook)(Dice&) = nullptr;

bool in_recovery(FaultPoint point) noexcept {
  switch (point) {
    case FaultPoint::recover_start:
    case FaultPoint::undo_middle:
    case FaultPoint::recover_end:
    case FaultPoint::rebuild_heads:
    case FaultPoint::rebuild_table:
    case FaultPoint::rebuild_middle:
    case FaultPoint::rebuild_lists:
    case FaultPoint::rebuild_done:
      return true;
    default:
      return false;
  }
}

// Points passed by the hundred in every operation: an armed kill should not always hit the first.
std::uint32_t skip_odds(FaultPoint point, std::uint64_t passed) noexcept {
  if (passed < 2000) return 1;
  switch (point) {
    case FaultPoint::logged:
      return 512;
    case FaultPoint::locked:
    case FaultPoint::undo_middle:
      return 16;
    default:
      return 2;
  }
}

[[noreturn]] void die(FaultPoint point, Tally how) noexcept {
  mortal_board->killed[static_cast<std::size_t>(point)].fetch_add(1, kRelaxed);
  mortal_board->count(how);
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

void at_fault_point(FaultPoint point) {
  const auto i = static_cast<std::size_t>(point);
  const std::uint64_t passed = mortal_board->passed[i].fetch_add(1, kRelaxed);
  if (point == FaultPoint::recover_start && recovery_hook != nullptr) recovery_hook(mortal_dice);
  if (mortal_board->armed[i].load(kRelaxed) > 0 && mortal_dice.one_in(skip_odds(point, passed)) &&
      mortal_board->armed[i].fetch_sub(1, kRelaxed) > 0) {
    die(point, Tally::kills_armed);
  }
  if (mortal_rate == 0) return;
  const std::uint32_t rate = in_recovery(point) ? mortal_rate / 100 + 2 : mortal_rate;
  if (mortal_dice.one_in(rate)) die(point, Tally::kills_by_rate);
}

}  // namespace

const char* tally_name(Tally tally) noexcept {
  constexpr const char* kNames[] = {
#define RADIX_NAME(name) #name,
      RADIX_CRASH_TALLIES(RADIX_NAME)
#undef RADIX_NAME
  };
  return kNames[static_cast<std::size_t>(tally)];
}

void Board::violate(const char* format, ...) noexcept {
  std::uint32_t none = 0;
  if (!violated.compare_exchange_strong(none, kClaimed, kRelaxed)) return;
  va_list args;
  va_start(args, format);
  std::vsnprintf(violation.data(), violation.size(), format, args);
  va_end(args);
  violated.store(kTold, std::memory_order_release);
}

std::string Board::verdict() const {
  if (violated.load(kRelaxed) == 0) return {};
  for (int i = 0; i < 1000; ++i) {
    if (violated.load(std::memory_order_acquire) == kTold) return violation.data();
    ::usleep(1000);
  }
  return "a violation; the process that saw it was killed before it could say which";
}

bool Board::runs(std::int32_t pid) const noexcept {
  for (const WorkerState& worker : workers) {
    if (worker.pid.load(std::memory_order_acquire) == pid) return true;
  }
  return false;
}

Board* make_board() {
  void* at =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  RADIX_CHECK(at != MAP_FAILED, sizeof(Board));
  return static_cast<Board*>(at);  // zeroed pages: every atomic holds 0
}

void free_board(Board* board) noexcept {
  ::munmap(board, sizeof(Board));
}

void make_mortal(Board* board, std::uint64_t seed, std::uint32_t rate) noexcept {
  mortal_board = board;
  mortal_rate = rate;
  mortal_dice = Dice(seed ^ 0x6d6f7274616c);
  fault::hook = at_fault_point;
}

void set_recovery_hook(void (*spoil)(Dice&)) noexcept {
  recovery_hook = spoil;
}

}  // namespace radixshmem::crash
