// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "transport/racing_copy.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace radixshmem {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

// A part of the aligned word that holds `from`. Loads are allowed in memory mapped read-only.
void copy_part(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  const std::size_t skip = reinterpret_cast<std::uintptr_t>(from) % kWord;
  auto* const address = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from - skip));
  const std::uint64_t word = std::atomic_ref(*address).load(std::memory_order_acquire);
  std::memcpy(to, reinterpret_cast<const std::byte*>(&word) + skip, bytes);
}

}  // namespace

void racing_copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  const std::size_t skip = reinterpret_cast<std::uintptr_t>(from) % kWord;
  std::size_t at = 0;
  if (skip != 0) {
    at = std::min(kWord - skip, bytes);
    copy_part(to, from, at);
  }
  for (; at + kWord <= bytes; at += kWord) copy_part(to + at, from + at, kWord);
  if (at < bytes) copy_part(to + at, from + at, bytes - at);
}

}  // namespace radixshmem
