// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What the machine itself can do: the limits that the other rows are compared with.
#pragma once

#include "base/error.h"
#include "bench/row.h"

namespace radixshmem::bench {

// Adds
//   walk          one dependent random access to a 512 MiB shared-memory area
//   walk_wall     the same for 0.3 s of wall time: for several processes at once
//   chained_xxh3  chained XXH3-64 over 128k canonical u32 tokens in blocks of 16
//   memcpy        one copy of 1.1 MiB between two places of a prefaulted shared-memory area
// Returns: why the shared memory could not be had.
Result<> add_machine_rows(Rows& rows);

}  // namespace radixshmem::bench
