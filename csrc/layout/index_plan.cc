// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "layout/index_plan.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/numbers.h"
#include "layout/words.h"

namespace radixshmem {
namespace {

constexpr std::uint64_t kPageBytes = std::uint64_t{kPageUnits} * kUnitBytes;
constexpr std::uint64_t kPageAlign = 4096;
constexpr std::uint64_t kRegionAlign = std::uint64_t{2} << 20;
constexpr std::uint64_t kDirectoryBytesPerKey = 32;  // entries of 16, half of them used
constexpr std::uint64_t kMinDirectoryBytes = 64 << 10;
constexpr std::uint64_t kMaxDirectoryBytes = std::uint64_t{128} << 30;  // lines fit 32 bits
// One class-1 segment per slot is 64 bytes; paths of two blocks take 96 per slot.
constexpr std::uint64_t kArenaBytesPerSlot = 96;

std::uint32_t segment_blocks_for(std::uint32_t block_size) noexcept {
  if (block_size < 256) return 64;
  return block_size < 512 ? 32 : 16;
}

Error bad_plan(const char* field, std::uint64_t value, const char* rule) {
  return Error{ErrorCode::INVALID_ARGUMENT,
               std::string("index plan: ") + field + " = " + std::to_string(value) + " " + rule};
}

Result<> validate(const IndexPlan& plan) {
  if (plan.block_size == 0) return bad_plan("block_size", 0, "must be at least 1 token");
  const std::uint32_t s = plan.segment_blocks;
  if (s != 0 && s != 16 && s != 32 && s != 64) {
    return bad_plan("segment_blocks", s, "must be 16, 32, 64 or 0 (chosen from block_size)");
  }
  if (plan.slots[0] == 0) return bad_plan("full_slots", 0, "must be at least 1");
  for (const std::uint32_t slots : plan.slots) {
    if (slots > kMaxPoolSlots) return bad_plan("slots", slots, "exceeds 2^30 - 1");
  }
  if (plan.slots[1] != 0 && plan.swa_window_blocks == 0) {
    return bad_plan("swa_window_blocks", 0, "must be at least 1 when there are SWA slots");
  }
  if (plan.max_clients < 1 || plan.max_clients > 65536) {
    return bad_plan("max_clients", plan.max_clients, "must be in [1, 65536]");
  }
  if (plan.max_pins < 16 || plan.max_pins > (1u << 20)) {
    return bad_plan("max_pins", plan.max_pins, "must be in [16, 1048576]");
  }
  if (plan.ring_entries < 1024 || !std::has_single_bit(plan.ring_entries)) {
    return bad_plan("ring_entries", plan.ring_entries, "must be a power of two, 1024 or more");
  }
  if (plan.lock_timeout_ms < 50) {
    return bad_plan("lock_timeout_ms", plan.lock_timeout_ms, "must be at least 50");
  }
  const std::uint64_t directory = plan.directory_bytes;
  if (directory != 0 && (directory < kPageAlign || directory > kMaxDirectoryBytes)) {
    return bad_plan("directory_bytes", directory, "must be in [4096, 128 GiB] or 0 (chosen)");
  }
  if (plan.identity.size() > kMaxIdentityBytes) {
    return bad_plan("identity", plan.identity.size(), "bytes exceed 1 MiB (a long fingerprint?)");
  }
  return Unit{};
}

// Requires: all other fields of `layout` are set.
void add_areas(const IndexPlan& plan, IndexLayout& layout) {
  const std::uint64_t full = plan.slots[0];
  const std::uint64_t swa = plan.slots[1];
  const std::uint64_t mamba = plan.slots[2];
  const std::uint64_t pages = layout.pages;
  std::uint64_t at = kHeaderBytes;
  auto add = [&](AreaKind kind, std::uint64_t bytes) {
    const std::uint64_t size = round_up(bytes, kPageAlign);
    layout.areas.push_back({kind, 1, at, size});
    at += size;
  };
  add(AreaKind::kPeerTable, kPeerTableBytes);
  add(AreaKind::kDirectory, std::uint64_t{layout.directory_lines} * kCacheLine);
  add(AreaKind::kArena, pages * kPageBytes);
  add(AreaKind::kSideBlocks, std::uint64_t{layout.side_blocks} * layout.side_bytes);
  add(AreaKind::kTable, std::uint64_t{layout.table_lines_max} * kCacheLine);
  layout.peer_readable_bytes = at;
  add(AreaKind::kControl, kControlBytes);
  add(AreaKind::kUndoLog, kUndoLogBytes);
  const std::uint64_t clients = plan.client_entries();
  add(AreaKind::kClients, clients * kClientEntryBytes);
  add(AreaKind::kPins, clients * plan.max_pins * 8);
  add(AreaKind::kRing, plan.ring_entries * kRingEntryBytes);
  add(AreaKind::kPages, pages * kPageEntryBytes);
  add(AreaKind::kOwnersFull, full * 4);
  add(AreaKind::kOwnersSwa, swa * 4);
  add(AreaKind::kOwnersMamba, mamba * 4);
  add(AreaKind::kScratchWords, pages * kPageUnits * 8);
  add(AreaKind::kScratchBits, (full / 64 + swa / 64 + mamba / 64 + 3) * 8);
  add(AreaKind::kIdentity, plan.identity.size() + 8);
  layout.region_bytes = round_up(at, kRegionAlign);
}

}  // namespace

ClassTable ClassTable::for_segment_blocks(std::uint32_t segment_blocks) noexcept {
  ClassTable table;
  table.segment_blocks = segment_blocks;
  table.capacity = {0, 1, 8, segment_blocks};
  table.units = {1, 1, 0, 0};
  for (std::uint32_t c = 2; c < kSizeClasses; ++c) {
    const std::uint32_t capacity = table.capacity[c];
    // header, hashes u64, slots u32, branch counts u16
    const std::uint32_t bytes = kSegmentHeaderBytes + capacity * 14;
    table.units[c] = (bytes + kUnitBytes - 1) / kUnitBytes;
  }
  for (std::uint32_t c = 1; c < kSizeClasses; ++c) {
    table.per_page[c] = kPageUnits / table.units[c];
  }
  return table;
}

Result<IndexLayout> IndexLayout::from_plan(const IndexPlan& plan) {
  if (auto valid = validate(plan); !valid) return valid.error();
  const std::uint32_t s =
      plan.segment_blocks != 0 ? plan.segment_blocks : segment_blocks_for(plan.block_size);
  IndexLayout layout;
  layout.classes = ClassTable::for_segment_blocks(s);

  const std::uint64_t full = plan.slots[0];
  const std::uint64_t pages = 8 + (full * kArenaBytesPerSlot + kPageBytes - 1) / kPageBytes;
  if (pages * kPageUnits > 0xffffffffu) {
    return bad_plan("full_slots", full, "needs more segment ids than 32 bits hold");
  }
  layout.pages = static_cast<std::uint32_t>(pages);

  const std::uint64_t swa = plan.slots[1];
  const std::uint64_t mamba = plan.slots[2];
  if (swa + mamba != 0) {
    // A window of W blocks touches at most W / S + 2 segments, at least one per window.
    const std::uint64_t window = std::max<std::uint64_t>(1, plan.swa_window_blocks);
    const std::uint64_t per_window = window / s + 2;
    const std::uint64_t wanted = (swa + window - 1) / window * per_window + mamba;
    layout.side_blocks = static_cast<std::uint32_t>(std::min(wanted, full) + 2);
    const std::uint32_t pools = (swa != 0 ? 1u : 0u) + (mamba != 0 ? 1u : 0u);
    layout.side_bytes = kSideHeaderBytes + pools * s * 8;
  }

  // Full size: one entry per slot at load 0.8; first size: full segments at half load.
  layout.table_lines_max =
      static_cast<std::uint32_t>(std::bit_ceil(std::max<std::uint64_t>(8, full * 10 / 64 + 8)));
  layout.table_lines_initial = static_cast<std::uint32_t>(
      std::bit_ceil(std::max<std::uint64_t>(8, full * 2 / (std::uint64_t{s} * 8))));
  layout.table_lines_initial = std::min(layout.table_lines_initial, layout.table_lines_max);

  const std::uint64_t directory =
      plan.directory_bytes != 0 ? plan.directory_bytes
                                : std::max(full * kDirectoryBytesPerKey / key_grid(plan.block_size, s),
                                           kMinDirectoryBytes);
  layout.directory_lines = static_cast<std::uint32_t>(round_up(directory, kPageAlign) / kCacheLine);

  add_areas(plan, layout);
  return layout;
}

const Area& IndexLayout::area(AreaKind kind) const noexcept {
  for (const Area& area : areas) {
    if (area.kind == kind) return area;
  }
  RADIX_CHECK(false, kind);
}

}  // namespace radixshmem
