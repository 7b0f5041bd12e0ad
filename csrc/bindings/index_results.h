// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What queries return to Python; index_results.cc makes its attributes when they are read.
#pragma once

#include <optional>

#include "node/session.h"
#include "remote/lookup.h"

namespace radixshmem::bindings {

[[nodiscard]] inline QueryOptions query_options(int mask, bool lock, bool update_meta) noexcept {
  return {mask < 0 ? 0u : static_cast<std::uint32_t>(mask), lock, update_meta, std::nullopt};
}

// A Hit in Python's hands. Collected while pinned, it warns and stays pinned until close.
struct QueryResult {
  explicit QueryResult(Hit from) : hit(std::move(from)) {}
  QueryResult(QueryResult&&) = default;
  QueryResult(const QueryResult&) = delete;
  ~QueryResult();

  Hit hit;
  std::optional<RemoteHit> remote;  // when peers have more than `hit`

  [[nodiscard]] Position common_hit() const noexcept {
    return remote ? remote->common_hit : hit.blocks;
  }
};

// The same for a Hit with aux_from.
struct AuxResult {
  explicit AuxResult(Hit from) : hit(std::move(from)) {}
  AuxResult(AuxResult&&) = default;
  AuxResult(const AuxResult&) = delete;
  ~AuxResult();

  Hit hit;
  [[nodiscard]] Position common_hit() const noexcept { return hit.blocks; }
};

}  // namespace radixshmem::bindings
