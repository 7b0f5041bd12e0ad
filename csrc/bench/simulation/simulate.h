// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One simulated cluster from begin to end.
//
// Each request comes to a random node, which stores the whole path. Requests are repeated until all
// slots could have been filled twice; from the middle on some of them first look up what other
// nodes have, and are counted. Publication is measured at one node of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/simulation/figures.h"
#include "bench/workload_file.h"

namespace radixshmem::bench {

inline constexpr std::uint32_t kLeastSlots = 1024;

struct SimulationOptions {
  std::size_t nodes = 0;              // 2 to 65,000
  std::uint32_t slots = 0;            // of each, kLeastSlots at least
  std::uint32_t lookups = 0;          // about so many are measured
  std::uint64_t directory_bytes = 0;  // of each; 0 = in proportion what a large node has by default
  std::uint32_t publishing_slots = 0;  // of the node whose publication is measured
};

// Requires: the file has inserts.
[[nodiscard]] Figures simulate(const SimulationOptions& options, const WorkloadFile& file);

}  // namespace radixshmem::bench
