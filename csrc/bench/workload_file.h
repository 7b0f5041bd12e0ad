// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Reads the workload files of benchmarks/workload.py; its docstring defines the bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ids.h"

namespace radixshmem::bench {

struct Insert {
  std::uint64_t conversation = 0;
  std::uint64_t blocks = 0;  // of the conversation that exist afterwards
};

struct WorkloadFile {
  std::uint64_t short_conversations = 0;  // the first ones; the others are long
  std::vector<std::uint64_t> offsets;     // conversation c: hashes[offsets[c], offsets[c + 1])
  std::vector<BlockHash> hashes;
  std::vector<Insert> inserts;

  // Returns: an error that names the file and says what is wrong with it.
  static Result<WorkloadFile> read(const std::string& path);

  [[nodiscard]] std::uint64_t conversations() const noexcept { return offsets.size() - 1; }
  [[nodiscard]] std::span<const BlockHash> path(std::uint64_t conversation) const noexcept {
    return std::span(hashes).subspan(offsets[conversation],
                                     offsets[conversation + 1] - offsets[conversation]);
  }
};

}  // namespace radixshmem::bench
