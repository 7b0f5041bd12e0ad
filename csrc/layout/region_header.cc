// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "layout/region_header.h"

#include <cstdio>
#include <cstring>
#include <string>

#include "base/numbers.h"
#include "layout/words.h"

namespace radixshmem {
namespace {

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(value));
  return text;
}

const RegionHeader& header_of(const std::byte* base) noexcept {
  return *reinterpret_cast<const RegionHeader*>(base);
}

}  // namespace

std::uint64_t layout_version() noexcept {
  constexpr std::uint64_t kProtocol = 3;  // raise when the meaning of a word changes
  std::uint64_t digest = extend_digest(
      kDigestStart, {kProtocol, sizeof(RegionHeader), offsetof(RegionHeader, areas), kUnitBytes,
                     kPageUnits, kSegmentHeaderBytes, kSideHeaderBytes, kControlBytes, kUndoEntries,
                     kClientEntryBytes, kRingEntryBytes, kPageEntryBytes, kOwnedBase});
  for (const std::uint32_t s : {16u, 32u, 64u}) {
    const ClassTable table = ClassTable::for_segment_blocks(s);
    for (std::uint32_t c = 0; c < kSizeClasses; ++c) {
      digest = extend_digest(digest, {table.capacity[c], table.units[c]});
    }
  }
  return digest;
}

void write_header(std::byte* base, const IndexPlan& plan, const IndexLayout& layout,
                  std::uint64_t incarnation) noexcept {
  auto& header = *reinterpret_cast<RegionHeader*>(base);
  header.layout_version = layout_version();
  header.state.store(static_cast<std::uint32_t>(RegionState::kConfiguring),
                     std::memory_order_relaxed);
  header.incarnation.store(incarnation, std::memory_order_relaxed);
  header.feature_bits = 0;
  header.region_bytes = layout.region_bytes;
  header.peer_readable_bytes = layout.peer_readable_bytes;
  header.identity_bytes = plan.identity.size();
  header.block_size = plan.block_size;
  header.segment_blocks = layout.classes.segment_blocks;
  for (std::size_t k = 0; k < kComponents; ++k) header.slots[k] = plan.slots[k];
  header.swa_window_blocks = plan.swa_window_blocks;
  header.max_clients = plan.max_clients;
  header.max_pins = plan.max_pins;
  header.ring_entries = plan.ring_entries;
  header.lock_timeout_ms = plan.lock_timeout_ms;
  header.rank = 0;
  header.directory_lines = layout.directory_lines;
  header.area_count = static_cast<std::uint32_t>(layout.areas.size());
  for (std::size_t i = 0; i < layout.areas.size(); ++i) {
    const Area& area = layout.areas[i];
    header.areas[i] = {static_cast<std::uint32_t>(area.kind), area.version, area.offset,
                       area.bytes};
  }
  std::memcpy(base + layout.area(AreaKind::kIdentity).offset, plan.identity.data(),
              plan.identity.size());
}

void publish_header(std::byte* base) noexcept {
  auto& header = *reinterpret_cast<RegionHeader*>(base);
  header.state.store(static_cast<std::uint32_t>(RegionState::kReady), std::memory_order_release);
  header.magic.store(kIndexMagic, std::memory_order_release);  // pairs with read_header
}

RegionState region_state(const std::byte* base) noexcept {
  return static_cast<RegionState>(header_of(base).state.load(std::memory_order_acquire));
}

void set_region_state(std::byte* base, RegionState state) noexcept {
  reinterpret_cast<RegionHeader*>(base)->state.store(static_cast<std::uint32_t>(state),
                                                     std::memory_order_release);
}

Result<HeaderView> read_header(std::span<const std::byte> region, std::string_view name) {
  const std::string who = "index region " + std::string(name);
  if (region.size() < kHeaderBytes) {
    return Error{ErrorCode::CORRUPT, who + " has " + std::to_string(region.size()) +
                                         " bytes, less than a header: restart its radix-server"};
  }
  const RegionHeader& header = header_of(region.data());
  const std::uint64_t magic = header.magic.load(std::memory_order_acquire);
  if (magic == 0) {
    return Error{ErrorCode::NOT_READY, who + " is not published yet: try again"};
  }
  if (magic != kIndexMagic) {
    return Error{ErrorCode::CORRUPT, who + " starts with " + hex(magic) + ", not with " +
                                         hex(kIndexMagic) + ": it is not a radixshmem index"};
  }
  if (header.layout_version != layout_version()) {
    return Error{ErrorCode::MISMATCH, who + " has layout " + hex(header.layout_version) +
                                          ", this process has " + hex(layout_version()) +
                                          ": use one radixshmem version per server name"};
  }
  HeaderView view;
  IndexPlan& plan = view.plan;
  plan.block_size = header.block_size;
  plan.segment_blocks = header.segment_blocks;
  for (std::size_t k = 0; k < kComponents; ++k) plan.slots[k] = header.slots[k];
  plan.swa_window_blocks = header.swa_window_blocks;
  plan.max_clients = header.max_clients;
  plan.max_pins = header.max_pins;
  plan.ring_entries = header.ring_entries;
  plan.lock_timeout_ms = header.lock_timeout_ms;
  plan.directory_bytes = std::uint64_t{header.directory_lines} * kCacheLine;
  if (header.identity_bytes > kMaxIdentityBytes) {
    return Error{ErrorCode::CORRUPT, who + " claims an identity of " +
                                         std::to_string(header.identity_bytes) + " bytes"};
  }
  plan.identity.resize(header.identity_bytes);
  auto layout = IndexLayout::from_plan(plan);
  if (!layout) return Error{ErrorCode::CORRUPT, who + ": " + layout.error().message};
  view.layout = std::move(layout).value();
  if (view.layout.region_bytes != header.region_bytes || region.size() < view.layout.region_bytes ||
      header.area_count != view.layout.areas.size()) {
    return Error{ErrorCode::CORRUPT, who + " has " + std::to_string(region.size()) +
                                         " bytes, its header says " +
                                         std::to_string(header.region_bytes) + ", its plan needs " +
                                         std::to_string(view.layout.region_bytes)};
  }
  for (std::size_t i = 0; i < view.layout.areas.size(); ++i) {
    const Area& want = view.layout.areas[i];
    const AreaRecord& have = header.areas[i];
    if (have.kind != static_cast<std::uint32_t>(want.kind) || have.version != want.version ||
        have.offset != want.offset || have.bytes != want.bytes) {
      return Error{ErrorCode::CORRUPT, who + ": area " + std::to_string(i) +
                                           " of its table is not where the plan puts it"};
    }
  }
  std::memcpy(plan.identity.data(), region.data() + view.layout.area(AreaKind::kIdentity).offset,
              plan.identity.size());
  return view;
}

}  // namespace radixshmem
