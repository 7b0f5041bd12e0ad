// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Named numbers, and how they spread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace radixshmem::bench {

using Figures = std::vector<std::pair<std::string, double>>;

[[nodiscard]] inline double ratio(double part, double whole) noexcept {
  return whole == 0 ? 0 : part / whole;
}

[[nodiscard]] inline double sum(const std::vector<double>& values) noexcept {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

[[nodiscard]] inline double mean(const std::vector<double>& values) noexcept {
  return ratio(sum(values), static_cast<double>(values.size()));
}

// Returns: 1 for values that are all the same.
[[nodiscard]] inline double max_over_mean(const std::vector<double>& values) noexcept {
  return values.empty() ? 0 : ratio(*std::ranges::max_element(values), mean(values));
}

[[nodiscard]] inline double percentile(std::vector<double> values, double percent) noexcept {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(last * percent / 100)];
}

}  // namespace radixshmem::bench
