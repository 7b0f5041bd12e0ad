// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What a network of no length costs.
#pragma once

#include "bench/row.h"

namespace radixshmem::bench {

// Adds
//   loopback      64 bytes to another thread over TCP on loopback, and back: wall time
void add_loopback_row(Rows& rows);

}  // namespace radixshmem::bench
