// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Short names for the orders of atomics that protocols here use.
#pragma once

#include <atomic>

namespace radixshmem {

inline constexpr auto kRelaxed = std::memory_order_relaxed;
inline constexpr auto kAcquire = std::memory_order_acquire;
inline constexpr auto kRelease = std::memory_order_release;

}  // namespace radixshmem
