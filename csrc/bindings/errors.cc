// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "bindings/errors.h"

namespace radixshmem::bindings {

namespace py = pybind11;

namespace {

const char* exception_name(ErrorCode code) noexcept {
  switch (code) {
#define RADIX_CASE(name, value, exception, meaning) \
  case ErrorCode::name:                             \
    return exception;
    RADIX_ERROR_CODES(RADIX_CASE)
#undef RADIX_CASE
  }
  return "RadixError";
}

}  // namespace

void throw_error(const Error& error) {
  const char* name = exception_name(error.code);
  py::module_ home = py::module_::import("builtins");
  if (!py::hasattr(home, name)) home = py::module_::import("radixshmem_core.errors");
  py::set_error(home.attr(name), error.message.c_str());
  throw py::error_already_set();
}

}  // namespace radixshmem::bindings
