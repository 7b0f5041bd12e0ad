// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Assertions for programmer errors. RADIX_CHECK aborts and prints the two values; use it in cold
// code. RADIX_DCHECK is for hot code and vanishes in release builds. Neither is for bad input.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace radixshmem::internal {

[[noreturn]] inline void check_failed(const char* file, int line, const char* condition,
                                      long long value) {
  std::fprintf(stderr, "%s:%d: check failed: %s (value %lld)\n", file, line, condition, value);
  std::abort();
}

}  // namespace radixshmem::internal

#define RADIX_CHECK(condition, value)                                      \
  do {                                                                     \
    if (!(condition)) [[unlikely]] {                                       \
      ::radixshmem::internal::check_failed(__FILE__, __LINE__, #condition, \
                                           static_cast<long long>(value)); \
    }                                                                      \
  } while (false)

#ifdef NDEBUG
#define RADIX_DCHECK(condition, value) \
  do {                                 \
  } while (false)
#else
#define RADIX_DCHECK(condition, value) RADIX_CHECK(condition, value)
#endif
