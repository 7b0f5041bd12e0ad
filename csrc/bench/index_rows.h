// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What the index costs without Python: queries of a workload, and full rebuilds.
#pragma once

#include <string>

#include "base/error.h"
#include "bench/row.h"

namespace radixshmem::bench {

// Fills an index with the workload file and adds
//   query_512         a query of a random short conversation, its slots copied out
//   query_512_pinned  the same, pinned and let go
//   query_4096        a query of a random long conversation, its slots copied out
//   rebuild           a full rebuild of everything derived
//   rebuild_single    the same of an index of 1M single-block paths, made when first asked for
// Returns: why the file could not be read or the index not be made.
Result<> add_index_rows(const std::string& workload_path, Rows& rows);

}  // namespace radixshmem::bench
