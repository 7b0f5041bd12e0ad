// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// From the wished sizes (IndexPlan) to the bytes of the index region (IndexLayout).
//
//   peer-readable, one range   header page | peer table | directory | arena | side blocks | table
//   private                    control | undo log | clients | pins | ring | pages | owners |
//                              scratch | identity
//
// Everything is sized here from the slot counts, reserved at start and never moved: a full pool is
// an error code later, never a crash. Without a cluster the peer table and the directory stay
// zeros.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ids.h"

namespace radixshmem {

struct IndexPlan {
  std::uint32_t block_size = 0;                    // tokens
  std::uint32_t segment_blocks = 0;                // S: 16, 32 or 64; 0 = chosen from block_size
  std::array<std::uint32_t, kComponents> slots{};  // by component; full must not be 0
  std::uint32_t swa_window_blocks = 0;
  std::uint32_t max_clients = 256;
  std::uint32_t max_pins = 8192;         // per client
  std::uint32_t ring_entries = 1 << 16;  // a power of two
  std::uint32_t lock_timeout_ms = 1000;
  std::uint64_t directory_bytes = 0;  // 0 = 32 per g full slots (see key_grid), 64 KiB at least
  std::string identity;               // opaque: what the slots mean; compared by the caller

  // Entries of the client table: the server's, one per client, and the last one for whoever looks
  // at an index whose table is full.
  [[nodiscard]] std::uint32_t client_entries() const noexcept { return max_clients + 2; }
};

// Returns: g, the distance in blocks of the positions whose hashes are keys of the directory.
[[nodiscard]] constexpr std::uint32_t key_grid(std::uint32_t block_size,
                                               std::uint32_t segment_blocks) noexcept {
  const std::uint32_t blocks = block_size >= 256 ? 1 : 256 / block_size;
  const std::uint32_t g = std::bit_floor(blocks);
  return g < segment_blocks ? g : segment_blocks;
}

// Segments come in three size classes (1, 2, 3); class 0 means "free page".
inline constexpr std::uint32_t kSizeClasses = 4;
inline constexpr std::uint32_t kUnitBytes = 64;    // granule of segment ids
inline constexpr std::uint32_t kPageUnits = 1024;  // 64 KiB pages
inline constexpr std::uint32_t kSegmentHeaderBytes = 48;
inline constexpr std::uint32_t kMaxSegmentBlocks = 64;

// How segments of each class lie in a page. Derived from S alone.
struct ClassTable {
  std::uint32_t segment_blocks = 0;                    // S
  std::array<std::uint32_t, kSizeClasses> capacity{};  // entries
  std::array<std::uint32_t, kSizeClasses> units{};     // 64-byte units per segment
  std::array<std::uint32_t, kSizeClasses> per_page{};

  [[nodiscard]] static ClassTable for_segment_blocks(std::uint32_t segment_blocks) noexcept;
};

// Side block: header, then u64 words [aux component][S].
inline constexpr std::uint32_t kSideHeaderBytes = 64;

enum class AreaKind : std::uint32_t {
  kPeerTable = 1,
  kDirectory,
  kArena,
  kSideBlocks,
  kTable,
  kControl,
  kUndoLog,
  kClients,
  kPins,
  kRing,
  kPages,
  kOwnersFull,
  kOwnersSwa,
  kOwnersMamba,
  kScratchWords,  // u64 per arena unit
  kScratchBits,   // one bit per slot, full then swa then mamba, each word-aligned
  kIdentity,
};

struct Area {
  AreaKind kind{};
  std::uint32_t version = 1;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

inline constexpr std::uint64_t kControlBytes = 4096;
inline constexpr std::uint64_t kUndoEntries = 16384;
inline constexpr std::uint64_t kUndoLogBytes = 64 + 16 * kUndoEntries;
inline constexpr std::uint64_t kClientEntryBytes = 320;
inline constexpr std::uint64_t kRingEntryBytes = 32;
inline constexpr std::uint64_t kPageEntryBytes = 32;
inline constexpr std::uint64_t kHeaderBytes = 4096;
// Shard map (65,536 shards x 2 ranks), own record, 1,023 peers of 256 bytes.
inline constexpr std::uint64_t kPeerTableBytes = (std::uint64_t{256} << 10) + 1024 * 256;
inline constexpr std::uint64_t kMaxIdentityBytes = 1 << 20;

struct IndexLayout {
  ClassTable classes;
  std::uint32_t pages = 0;        // arena pages, page 0 unused
  std::uint32_t side_blocks = 0;  // side 0 unused; 0 = no aux pools
  std::uint32_t side_bytes = 0;
  std::uint32_t table_lines_initial = 0;  // powers of two
  std::uint32_t table_lines_max = 0;
  std::uint32_t directory_lines = 0;  // 64 bytes each
  std::uint64_t peer_readable_bytes = 0;
  std::uint64_t region_bytes = 0;
  std::vector<Area> areas;  // in address order

  // Returns: INVALID_ARGUMENT naming the field and its value for a plan that cannot be.
  [[nodiscard]] static Result<IndexLayout> from_plan(const IndexPlan& plan);
  // Requires: the area exists in every layout.
  [[nodiscard]] const Area& area(AreaKind kind) const noexcept;
};

}  // namespace radixshmem
