// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "base/error.h"

#include <cstring>

namespace radixshmem {

const char* error_name(ErrorCode code) noexcept {
  switch (code) {
#define RADIX_CASE(name, value, exception, meaning) \
  case ErrorCode::name:                             \
    return #name;
    RADIX_ERROR_CODES(RADIX_CASE)
#undef RADIX_CASE
  }
  return "unknown";
}

Error system_error(std::string what, int error_number) {
  return Error{ErrorCode::SYSTEM, std::move(what) + ": " + std::strerror(error_number)};
}

Error invalid_argument(std::string message) {
  return Error{ErrorCode::INVALID_ARGUMENT, std::move(message)};
}

}  // namespace radixshmem
