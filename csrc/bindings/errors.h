// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Turns an Error into the Python exception that the table of base/error.h names for its code.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "base/error.h"
#include "bindings/gil.h"

namespace radixshmem::bindings {

// Throws py::error_already_set. Requires: the GIL.
[[noreturn]] void throw_error(const Error& error);

// Returns: the value of `result`; throws its error. Requires: the GIL.
template <typename T>
T unwrap(Result<T> result) {
  if (!result) throw_error(result.error());
  return std::move(result).value();
}

// Runs f() without the GIL. Returns: the value of its Result; throws its error. Requires: the GIL.
template <typename F>
auto unlocked(F f) {
  auto result = [&] {
    const GilRelease release;
    return f();
  }();
  return unwrap(std::move(result));
}

}  // namespace radixshmem::bindings
