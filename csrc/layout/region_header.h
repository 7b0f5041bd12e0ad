// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The first page of an index region: what it is, whose life it belongs to, where the areas are.
//
//   magic | layout version | state | incarnation | features | sizes | plan fields | area table
//
// Who may read: any process that maps the region; a peer by one-sided reads.
// Order: the creator writes everything, then state, then magic (release). A reader loads magic
// first (acquire) and believes nothing else before. Afterwards only `state` and `incarnation`
// change. A header without the magic, or with another layout version, is refused, naming both
// sides; every offset is checked against the size of the mapping before it is used.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "layout/index_plan.h"

namespace radixshmem {

enum class RegionState : std::uint32_t {
  kConfiguring = 0,
  kReady = 1,
  kClosed = 2,      // its server closed cleanly
  kSuperseded = 3,  // a later server made another region of this name
};

inline constexpr std::uint64_t kIndexMagic = 0x3158444948535852;  // "RXSHIDX1"
inline constexpr std::size_t kMaxAreas = 32;

struct AreaRecord {
  std::uint32_t kind;
  std::uint32_t version;
  std::uint64_t offset;
  std::uint64_t bytes;
};

struct RegionHeader {
  std::atomic<std::uint64_t> magic;
  std::uint64_t layout_version;
  std::atomic<std::uint32_t> state;
  std::uint32_t area_count;
  std::atomic<std::uint64_t> incarnation;
  std::uint64_t feature_bits;
  std::uint64_t region_bytes;
  std::uint64_t peer_readable_bytes;
  std::uint64_t identity_bytes;
  std::uint32_t block_size;
  std::uint32_t segment_blocks;
  std::uint32_t slots[kComponents];
  std::uint32_t swa_window_blocks;
  std::uint32_t max_clients;
  std::uint32_t max_pins;
  std::uint32_t ring_entries;
  std::uint32_t lock_timeout_ms;
  std::uint32_t rank;
  std::uint32_t directory_lines;
  AreaRecord areas[kMaxAreas];
};
static_assert(std::is_standard_layout_v<RegionHeader>);
static_assert(sizeof(RegionHeader) <= kHeaderBytes);
static_assert(offsetof(RegionHeader, magic) == 0);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && sizeof(std::atomic<std::uint8_t>) == 1);

// A digest of every size and offset of the layout: a build that lays the region out differently
// has another version.
[[nodiscard]] std::uint64_t layout_version() noexcept;

// Writes every field but the magic. Requires: `base` maps layout.region_bytes zeroed bytes.
void write_header(std::byte* base, const IndexPlan& plan, const IndexLayout& layout,
                  std::uint64_t incarnation) noexcept;

// Publishes the region: state READY, then the magic.
void publish_header(std::byte* base) noexcept;

// Requires: `base` maps a region whose header was read, or is being made.
[[nodiscard]] RegionState region_state(const std::byte* base) noexcept;
void set_region_state(std::byte* base, RegionState state) noexcept;

struct HeaderView {
  IndexPlan plan;  // identity included
  IndexLayout layout;
};

// Checks a mapped region of `bytes` bytes as untrusted input.
// Returns: NOT_READY without the magic; MISMATCH for another layout version; CORRUPT otherwise.
[[nodiscard]] Result<HeaderView> read_header(std::span<const std::byte> region,
                                             std::string_view name);

}  // namespace radixshmem
