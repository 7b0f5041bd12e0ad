// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The header page of a SlotStore region, and the geometry that it describes.
//
//   0         4096 or one huge page (data_offset)                              end of file
//   | header | pool full: num_slots x stride | pool swa | pool mamba | unused |
//
// All integers are little endian; offsets of pools count from data_offset, an absent pool is all 0.
// Order of stores: every field, then `magic` (release; the acquire is in read_store_header). A
// region whose maker died before that has magic 0 and is never attached. The header never changes
// afterwards; an attaching process copies it once, checks the copy as hostile input, and never
// looks at it again.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "base/ids.h"
#include "base/numbers.h"
#include "layout/words.h"

namespace radixshmem {

inline constexpr std::uint64_t kStoreHeaderBytes = 4096;
inline constexpr std::uint64_t kStoreMagic = 0x31544f4c53584452;  // "RDXSLOT1" as bytes

struct PoolHeader {
  std::uint64_t num_slots;
  std::uint64_t slot_bytes;  // as asked for
  std::uint64_t stride;      // slot_bytes rounded up to slot_align
  std::uint64_t offset;      // of slot 0, from data_offset
  friend bool operator==(const PoolHeader&, const PoolHeader&) = default;
};
static_assert(sizeof(PoolHeader) == 32 && std::is_trivially_copyable_v<PoolHeader>);

struct StoreHeader {
  std::atomic<std::uint64_t> magic;
  std::uint64_t layout_version;
  std::uint64_t nonce;  // names this life of the region; chosen by its maker
  std::uint64_t slot_align;
  std::uint64_t data_offset;
  std::uint64_t data_bytes;  // of all pools together
  PoolHeader pools[kComponents];
};
static_assert(sizeof(StoreHeader) == 144 && offsetof(StoreHeader, pools) == 48);
static_assert(std::is_standard_layout_v<StoreHeader> && sizeof(StoreHeader) <= kStoreHeaderBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Changes whenever the structs above do.
inline constexpr std::uint64_t kStoreLayoutVersion = extend_digest(
    kDigestStart,
    {kStoreHeaderBytes, kComponents, sizeof(StoreHeader), offsetof(StoreHeader, magic),
     offsetof(StoreHeader, layout_version), offsetof(StoreHeader, nonce),
     offsetof(StoreHeader, slot_align), offsetof(StoreHeader, data_offset),
     offsetof(StoreHeader, data_bytes), offsetof(StoreHeader, pools), sizeof(PoolHeader),
     offsetof(PoolHeader, num_slots), offsetof(PoolHeader, slot_bytes),
     offsetof(PoolHeader, stride), offsetof(PoolHeader, offset)});

struct PoolSize {
  std::uint64_t num_slots = 0;  // 0: no such pool
  std::uint64_t slot_bytes = 0;
};

// The geometry of a store, checked: no arithmetic on it can overflow.
struct StoreLayout {
  std::uint64_t nonce = 0;
  std::uint64_t slot_align = 1;
  std::uint64_t data_offset = 0;
  std::uint64_t data_bytes = 0;
  std::array<PoolHeader, kComponents> pools{};

  [[nodiscard]] std::uint64_t region_bytes() const noexcept { return data_offset + data_bytes; }
};

// Plans a store; `page_bytes` is the unit of mapping. Returns: INVALID_ARGUMENT naming the numbers.
Result<StoreLayout> plan_store(const std::array<PoolSize, kComponents>& sizes,
                               std::uint64_t slot_align, std::uint64_t nonce,
                               std::uint64_t page_bytes);

// Writes the header of a new region, magic last. Requires: kStoreHeaderBytes at `base`, 8-aligned.
void write_store_header(std::byte* base, const StoreLayout& layout) noexcept;

// Reads and checks a header that may be anything. Requires: `region` is 8-aligned.
// Returns: NOT_READY while magic is 0, MISMATCH for another layout, CORRUPT for the rest.
Result<StoreLayout> read_store_header(const std::string& name, std::span<const std::byte> region);

}  // namespace radixshmem
