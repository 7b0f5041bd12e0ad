// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What one node's publisher sends, in simulated time: the real publisher, asked as often as a
// server asks it, of a node whose cache is full.
#pragma once

#include <cstdint>

#include "bench/simulation/figures.h"
#include "bench/simulation/requests.h"

namespace radixshmem::bench {

struct PublicationOptions {
  std::size_t nodes = 0;
  std::uint32_t slots = 0;
  double blocks_per_s = 0;  // that the node stores
  std::uint32_t seconds = 0;
  // As radixshmem_core/cluster/publication.py has them.
  std::uint32_t tick_ms = 50;
  std::uint32_t heal_rate = 10'000;   // keys a second of a periodic republication
  std::uint32_t moved_rate = 50'000;  // the same of keys that have a new keeper
};

// Adds what goes to other nodes while blocks are stored, in a periodic republication of everything,
// and when another node that keeps shards has left.
void measure_publication(const PublicationOptions& options, Requests& requests, Figures& out);

}  // namespace radixshmem::bench
