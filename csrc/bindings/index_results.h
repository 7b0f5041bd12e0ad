// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The results of index calls as Python objects. Arrays and lists are built when they are read.
#pragma once

#include <pybind11/pybind11.h>

#include "node/session.h"

namespace radixshmem::bindings {

// A Hit in Python's hands. Collected while pinned, it warns and stays pinned until close.
struct QueryResult {
  explicit QueryResult(Hit from) : hit(std::move(from)) {}
  QueryResult(QueryResult&&) = default;
  QueryResult(const QueryResult&) = delete;
  ~QueryResult();

  Hit hit;
  std::uint32_t rank = 0;
};

void bind_results(pybind11::module_& module);

}  // namespace radixshmem::bindings
