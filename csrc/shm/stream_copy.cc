// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "shm/stream_copy.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/ids.h"

namespace radixshmem {

#ifdef __SSE2__

namespace {

constexpr std::size_t kVector = sizeof(__m128i);
constexpr std::size_t kPrefetchBytes = 512;

bool overlap(const std::byte* a, const std::byte* b, std::size_t size) noexcept {
  const auto first = reinterpret_cast<std::uintptr_t>(a);
  const auto second = reinterpret_cast<std::uintptr_t>(b);
  return first < second ? second - first < size : first - second < size;
}

// Requires: `to` is aligned to a cache line.
void stream_line(std::byte* to, const std::byte* from) noexcept {
  auto* const out = reinterpret_cast<__m128i*>(to);
  const auto* const in = reinterpret_cast<const __m128i*>(from);
  const __m128i parts[kCacheLine / kVector] = {_mm_loadu_si128(in), _mm_loadu_si128(in + 1),
                                               _mm_loadu_si128(in + 2), _mm_loadu_si128(in + 3)};
  _mm_stream_si128(out, parts[0]);
  _mm_stream_si128(out + 1, parts[1]);
  _mm_stream_si128(out + 2, parts[2]);
  _mm_stream_si128(out + 3, parts[3]);
}

}  // namespace

void stream_copy(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  const std::size_t head =
      (kCacheLine - reinterpret_cast<std::uintptr_t>(to) % kCacheLine) % kCacheLine;
  if (size < head + kCacheLine || overlap(to, from, size)) {
    std::memmove(to, from, size);
    return;
  }
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + kCacheLine <= size; at += kCacheLine) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + at + kPrefetchBytes, _MM_HINT_NTA);
    stream_line(to + at, from + at);
  }
  std::memcpy(to + at, from + at, size - at);
  _mm_sfence();
}

#else

void stream_copy(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  std::memmove(to, from, size);
}

#endif

}  // namespace radixshmem
