// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Arithmetic that several rooms need. Pure functions.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace radixshmem {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Returns: the least multiple of `unit` that is not below `value`. Requires: unit > 0, and
// value + unit does not overflow.
[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

inline constexpr std::uint64_t kDigestStart = 0xcbf29ce484222325;

// Returns: `digest` continued with the values, byte by byte from the lowest (FNV-1a). For layout
// versions: not for input that somebody may choose.
[[nodiscard]] constexpr std::uint64_t extend_digest(
    std::uint64_t digest, std::initializer_list<std::uint64_t> values) noexcept {
  for (const std::uint64_t value : values) {
    for (int shift = 0; shift < 64; shift += 8) {
      digest = (digest ^ ((value >> shift) & 0xff)) * 0x100000001b3;
    }
  }
  return digest;
}

}  // namespace radixshmem
