// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "hash/page_key.h"

#include <array>
#include <cstdint>

namespace radixshmem {
namespace {

constexpr std::uint8_t kNoDigit = 0xff;  // all of the high bits, which no digit has

constexpr std::array<std::uint8_t, 256> digit_values() noexcept {
  std::array<std::uint8_t, 256> values{};
  for (std::uint8_t& value : values) value = kNoDigit;
  for (std::uint8_t i = 0; i < 10; ++i) values[std::size_t{'0'} + i] = i;
  for (std::uint8_t i = 0; i < 6; ++i) {
    values[std::size_t{'a'} + i] = values[std::size_t{'A'} + i] = static_cast<std::uint8_t>(10 + i);
  }
  return values;
}

constexpr std::array<std::uint8_t, 256> kDigitValue = digit_values();

}  // namespace

bool read_page_key(const char* digits, BlockHash& out) noexcept {
  std::uint64_t number = 0;
  std::uint8_t all = 0;
  for (std::size_t i = 0; i < kPageKeyDigits; ++i) {
    const std::uint8_t value = kDigitValue[static_cast<unsigned char>(digits[i])];
    all = static_cast<std::uint8_t>(all | value);
    number = number << 4 | value;
  }
  out = number;
  return all < 16;
}

}  // namespace radixshmem
