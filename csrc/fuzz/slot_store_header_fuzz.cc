// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// read_store_header on hostile bytes: it must refuse them, or return a geometry that lies within
// the region. Input: a selector, the region's size, then changes {field, value} to a good header.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "layout/slot_store_header.h"

namespace radixshmem {
namespace {

constexpr std::size_t kFields = sizeof(StoreHeader) / 8;
constexpr std::size_t kChangeBytes = 9;

void check_within(const StoreLayout& layout, std::uint64_t region_bytes) {
  RADIX_CHECK(layout.data_offset >= kStoreHeaderBytes, layout.data_offset);
  RADIX_CHECK(layout.region_bytes() <= region_bytes, layout.region_bytes());
  for (const PoolHeader& pool : layout.pools) {
    RADIX_CHECK(pool.offset <= layout.data_bytes, pool.offset);
    if (pool.num_slots == 0) continue;
    RADIX_CHECK(pool.slot_bytes != 0 && pool.stride >= pool.slot_bytes, pool.stride);
    RADIX_CHECK(pool.num_slots <= (layout.data_bytes - pool.offset) / pool.stride, pool.num_slots);
  }
}

}  // namespace
}  // namespace radixshmem

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace radixshmem;
  if (size < 3) return 0;
  std::vector<std::uint64_t> words((std::size_t{data[1]} << 8 | data[2]) / 8 + 1);
  auto* const region = reinterpret_cast<std::byte*>(words.data());
  const std::size_t region_bytes = words.size() * 8;
  if (region_bytes >= kStoreHeaderBytes && (data[0] & 1) != 0) {
    const PoolSize swa = (data[0] & 2) != 0 ? PoolSize{3, 700} : PoolSize{};
    write_store_header(region, plan_store({{{20, 100}, swa, {2, 1}}}, 64, 9, 4096).value());
    const std::size_t end = std::min(size, 3 + (data[0] >> 2 & 3) * kChangeBytes);
    for (std::size_t at = 3; at + kChangeBytes <= end; at += kChangeBytes) {
      std::uint64_t value = 0;
      std::memcpy(&value, data + at + 1, 8);
      words[data[at] % kFields] = value >> (data[at] % 61);
    }
  } else {
    std::memcpy(region, data, std::min(size, region_bytes));
    if (region_bytes >= 16 && (data[0] & 2) != 0) {
      words[0] = kStoreMagic;
      words[1] = kStoreLayoutVersion;
    }
  }
  const Result<StoreLayout> read = read_store_header("/fuzz", {region, region_bytes});
  if (read) check_within(read.value(), region_bytes);
  return 0;
}
