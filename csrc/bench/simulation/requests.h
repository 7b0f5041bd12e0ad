// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Requests without an end: those of a workload file in their order, again and again, each time of
// other users: the same lengths and shared prefixes, other hashes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/workload_file.h"
#include "layout/words.h"

namespace radixshmem::bench {

class Requests final {
 public:
  // Paths are cut after `most` blocks.
  Requests(const WorkloadFile& file, std::size_t most) : file_(file), most_(most) {}

  // Valid until the next call.
  [[nodiscard]] std::span<const BlockHash> next() {
    const Insert& insert = file_.inserts[at_];
    const auto whole = file_.path(insert.conversation).first(insert.blocks);
    const auto path = whole.first(std::min(whole.size(), most_));
    path_.clear();
    for (const BlockHash hash : path) path_.push_back(mix_hash(hash + pass_));
    if (++at_ == file_.inserts.size()) {
      at_ = 0;
      ++pass_;
    }
    return path_;
  }

 private:
  const WorkloadFile& file_;
  std::size_t most_;
  std::size_t at_ = 0;
  std::uint64_t pass_ = 1;
  std::vector<BlockHash> path_;
};

}  // namespace radixshmem::bench
