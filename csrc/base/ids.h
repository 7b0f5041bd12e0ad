// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The integer ids that stand for things in shared memory. No pointer is ever stored there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace radixshmem {

using SegmentId = std::uint32_t;  // offset in the arena / 64; 0 = none
using SideId = std::uint32_t;     // side block; 0 = none
using PageId = std::uint32_t;     // arena page; 0 = none
using SlotId = std::uint32_t;     // slot of one pool; ids start at 0
using ClientId = std::uint32_t;   // 0 = the server
using BlockHash = std::uint64_t;  // chained prefix hash of a block
using Position = std::uint32_t;   // block index in a path; the root block is 0

inline constexpr std::size_t kCacheLine = 64;

// Slot ids as callers have them: the same bits, signed, since -1 stands for "no slot".
[[nodiscard]] inline std::span<const SlotId> slot_ids(
    std::span<const std::int32_t> slots) noexcept {
  return {reinterpret_cast<const SlotId*>(slots.data()), slots.size()};
}

// Pools of slots. The values are those of the public ComponentType.
enum class Component : std::uint8_t { kFull = 0, kSwa = 1, kMamba = 2 };
inline constexpr std::size_t kComponents = 3;
inline constexpr std::array kAllComponents{Component::kFull, Component::kSwa, Component::kMamba};

// Returns: its public name.
[[nodiscard]] constexpr const char* component_name(Component component) noexcept {
  constexpr const char* kNames[kComponents] = {"FULL", "SWA", "MAMBA"};
  return kNames[static_cast<std::size_t>(component)];
}

inline constexpr std::uint32_t kMaskFull = 1;
inline constexpr std::uint32_t kMaskSwa = 2;
inline constexpr std::uint32_t kMaskMamba = 4;

}  // namespace radixshmem
