// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The supervisor of a campaign. It holds no session itself: it forks a server, a checker and the
// workers, kills them by armed fault points, by rate and from outside, waits for each (the proof
// that it has exited), starts the next, and looks for workers that hang.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tests/crash/board.h"
#include "tests/crash/options.h"

namespace radixshmem::crash {

struct Totals {
  std::array<std::uint64_t, kFaultPoints> killed{};
  std::array<std::uint64_t, kFaultPoints> passed{};
  std::array<std::uint64_t, kTallies> tallies{};
  std::uint64_t operations = 0;
  double seconds = 0;

  void add(const Board& board) noexcept;
  [[nodiscard]] std::uint64_t kills() const noexcept;  // of processes, by whatever means
};

// Returns: the first violation, empty when there was none. Adds to `totals`, and arms the points
// that are least killed there first.
[[nodiscard]] std::string run_campaign(const Options& options, Totals& totals);

// The same workers as threads of this process; nobody is killed.
[[nodiscard]] std::string run_threads(const Options& options, Totals& totals);

}  // namespace radixshmem::crash
