// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "layout/slot_store_header.h"

#include <algorithm>
#include <new>

#include "base/numbers.h"

namespace radixshmem {
namespace {

using std::to_string;

constexpr std::uint64_t kMaxSlotBytes = std::uint64_t{1} << 40;
constexpr std::uint64_t kMaxDataBytes = std::uint64_t{1} << 46;
constexpr const char* kPoolNames[kComponents] = {"full", "swa", "mamba"};

Error corrupt(const std::string& name, const std::string& what) {
  return Error{ErrorCode::CORRUPT, "region " + name + " is not a usable SlotStore: " + what +
                                       "; destroy it and let the server make a new one"};
}

Result<PoolHeader> plan_pool(const char* pool, const PoolSize& size, std::uint64_t slot_align,
                             std::uint64_t offset) {
  if (size.num_slots == 0 && size.slot_bytes == 0) return PoolHeader{};
  if (size.num_slots == 0 || size.num_slots > kMaxPoolSlots || size.slot_bytes == 0 ||
      size.slot_bytes > kMaxSlotBytes) {
    return invalid_argument(std::string("pool ") + pool + " cannot have " +
                            to_string(size.num_slots) + " slots of " + to_string(size.slot_bytes) +
                            " bytes: 1 to " + to_string(kMaxPoolSlots) +
                            " slots of 1 to 2^40 bytes are possible (0 of 0: no such pool)");
  }
  const PoolHeader planned{size.num_slots, size.slot_bytes, round_up(size.slot_bytes, slot_align),
                           offset};
  if (planned.num_slots > (kMaxDataBytes - offset) / planned.stride) {
    return invalid_argument(std::string("pool ") + pool + " of " + to_string(size.num_slots) +
                            " slots of " + to_string(planned.stride) +
                            " bytes does not fit below 2^46 bytes");
  }
  return planned;
}

}  // namespace

Result<StoreLayout> plan_store(const std::array<PoolSize, kComponents>& sizes,
                               std::uint64_t slot_align, std::uint64_t nonce,
                               std::uint64_t page_bytes) {
  if (slot_align == 0 || slot_align > kMaxSlotBytes) {
    return invalid_argument("slot_align = " + to_string(slot_align) + " must be 1 to 2^40 bytes");
  }
  StoreLayout layout;
  layout.nonce = nonce;
  layout.slot_align = slot_align;
  layout.data_offset = std::max(kStoreHeaderBytes, page_bytes);
  for (std::size_t kind = 0; kind < kComponents; ++kind) {
    Result<PoolHeader> pool =
        plan_pool(kPoolNames[kind], sizes[kind], slot_align, layout.data_bytes);
    if (!pool) return std::move(pool).error();
    layout.pools[kind] = pool.value();
    layout.data_bytes += pool.value().num_slots * pool.value().stride;
  }
  if (layout.data_bytes == 0)
    return invalid_argument("a SlotStore needs at least one pool with slots");
  return layout;
}

void write_store_header(std::byte* base, const StoreLayout& layout) noexcept {
  auto* const header = new (base) StoreHeader{};
  header->layout_version = kStoreLayoutVersion;
  header->nonce = layout.nonce;
  header->slot_align = layout.slot_align;
  header->data_offset = layout.data_offset;
  header->data_bytes = layout.data_bytes;
  std::copy(layout.pools.begin(), layout.pools.end(), header->pools);
  header->magic.store(kStoreMagic, std::memory_order_release);
}

Result<StoreLayout> read_store_header(const std::string& name, std::span<const std::byte> region) {
  if (region.size() < kStoreHeaderBytes) {
    return corrupt(name, "it has " + to_string(region.size()) + " bytes, its header needs " +
                             to_string(kStoreHeaderBytes));
  }
  const auto& header = *reinterpret_cast<const StoreHeader*>(region.data());
  const std::uint64_t magic = header.magic.load(std::memory_order_acquire);
  if (magic == 0) {
    return Error{ErrorCode::NOT_READY, "region " + name + " is still being made"};
  }
  if (magic != kStoreMagic) return corrupt(name, "its magic is " + to_string(magic));
  if (header.layout_version != kStoreLayoutVersion) {
    return Error{ErrorCode::MISMATCH, "region " + name + " has SlotStore layout " +
                                          to_string(header.layout_version) + ", this library has " +
                                          to_string(kStoreLayoutVersion) +
                                          ": run the same radixshmem version on both sides"};
  }
  // One copy, so that nobody can change a value between its check and its use. What follows from
  // the sizes is then computed and compared, not believed.
  StoreHeader copy{};
  copy.nonce = header.nonce;
  copy.slot_align = header.slot_align;
  copy.data_offset = header.data_offset;
  copy.data_bytes = header.data_bytes;
  std::copy(std::begin(header.pools), std::end(header.pools), copy.pools);
  if (copy.data_offset < kStoreHeaderBytes || copy.data_offset > region.size() ||
      copy.data_offset % kStoreHeaderBytes != 0) {
    return corrupt(name, "data_offset = " + to_string(copy.data_offset) + " in a file of " +
                             to_string(region.size()) + " bytes");
  }
  std::array<PoolSize, kComponents> sizes;
  for (std::size_t kind = 0; kind < kComponents; ++kind) {
    sizes[kind] = {copy.pools[kind].num_slots, copy.pools[kind].slot_bytes};
  }
  Result<StoreLayout> planned = plan_store(sizes, copy.slot_align, copy.nonce, copy.data_offset);
  if (!planned) return corrupt(name, planned.error().message);
  const StoreLayout& layout = planned.value();
  for (std::size_t kind = 0; kind < kComponents; ++kind) {
    const PoolHeader& found = copy.pools[kind];
    const PoolHeader& expected = layout.pools[kind];
    if (found != expected) {
      return corrupt(name, std::string("pool ") + kPoolNames[kind] + " says stride " +
                               to_string(found.stride) + " at offset " + to_string(found.offset) +
                               ", not " + to_string(expected.stride) + " at " +
                               to_string(expected.offset));
    }
  }
  if (copy.data_bytes != layout.data_bytes || layout.region_bytes() > region.size()) {
    return corrupt(name, "it promises " + to_string(copy.data_bytes) +
                             " bytes of data, its pools need " + to_string(layout.data_bytes) +
                             ", its file holds " + to_string(region.size() - copy.data_offset));
  }
  return planned;
}

}  // namespace radixshmem
