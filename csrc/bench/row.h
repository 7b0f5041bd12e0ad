// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Rows: named measurements that can be taken again and again, so that a driver can interleave them.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <string>

#include "base/error.h"

namespace radixshmem::bench {

struct Sample {
  double ns = 0;            // per operation
  std::uint64_t count = 0;  // operations measured
};

// One call takes one sample, mostly in some milliseconds.
using Rows = std::map<std::string, std::function<Result<Sample>()>>;

// Processor time of this thread: other processes on the machine do not count.
class Stopwatch final {
 public:
  Stopwatch() noexcept : begin_(now_ns()) {}
  [[nodiscard]] double elapsed_ns() const noexcept {
    return static_cast<double>(now_ns() - begin_);
  }

 private:
  static std::int64_t now_ns() noexcept {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }
  std::int64_t begin_;
};

// Times `operation(i)` for i in [0, count).
template <typename Operation>
Sample measure(std::uint64_t count, Operation&& operation) {
  const Stopwatch watch;
  for (std::uint64_t i = 0; i < count; ++i) operation(i);
  return {watch.elapsed_ns() / static_cast<double>(count), count};
}

// Makes the compiler compute `value`.
template <typename T>
void keep(const T& value) noexcept {
  asm volatile("" : : "r,m"(value) : "memory");
}

}  // namespace radixshmem::bench
