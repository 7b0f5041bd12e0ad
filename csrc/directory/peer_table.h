// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What a node knows of its cluster, for every process on it: the area kPeerTable.
//
//   shard map   u16[65,536][2]   the rank that keeps each shard, and its replica; 0xffff = none
//   header      own rank, digest and state; 256 bytes
//   peers       1,023 records of 256 bytes; that of rank r is number r
//
// Who may write: the radix-server, one thread; suspect_until_ms anybody. Who may read: any process
// that maps the region. Header and records are read under their sequence word (odd while written,
// also by a server that died there: then there is nothing to read until the next one writes it). A
// shard map that is read while it changes sends a reader to a rank that does not have the key: a
// miss. All zeros, as a new region has it: no cluster, so own() is empty and nobody reads the rest.
// Invariant: a record that is not kAbsent describes one incarnation; another one of the same rank
// is written over it as a whole.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "directory/directory_words.h"
#include "layout/index_plan.h"

namespace radixshmem {

enum class PeerState : std::uint32_t {
  kAbsent = 0,
  kLive = 1,   // same digest: its directory and tree may be read
  kOther = 2,  // another geometry, fingerprint, epoch or version: a member, never read
  kGone = 3,   // not answering; the registry may still list it
};

// Where things lie in a peer's index region, and whose they are. Copied out of a record.
struct PeerInfo {
  std::uint16_t rank = 0xffff;
  PeerState state = PeerState::kAbsent;
  bool warming = false;  // its directory is not complete yet: write to it, do not read it
  std::uint64_t incarnation = 0;
  std::uint64_t peer_readable_bytes = 0;
  std::uint64_t directory_offset = 0;
  std::uint64_t arena_offset = 0;
  std::uint64_t side_offset = 0;
  std::uint64_t table_offset = 0;
  std::uint32_t directory_lines = 0;
  std::uint32_t arena_units = 0;  // 64 bytes each
  std::uint32_t side_blocks = 0;
  std::uint32_t side_bytes = 0;   // of one side block
  std::uint32_t table_lines = 0;  // in use when last heard of
  std::uint32_t table_lines_max = 0;
};

// Whose table it is.
struct OwnInfo {
  std::uint16_t rank = 0xffff;
  bool draining = false;     // publishes nothing any more
  std::uint64_t digest = 0;  // of geometry, fingerprint, protocol and epoch; mixed into keys
};

// The ranks that keep a shard; the second is the replica.
using ShardRanks = std::array<std::uint16_t, 2>;
inline constexpr std::uint16_t kNoShardRank = 0xffff;

struct PeerRecord {
  std::atomic<std::uint32_t> sequence;
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint64_t> suspect_until_ms;  // CLOCK_MONOTONIC of this node
  std::atomic<std::uint64_t> words[30];         // PeerInfo, packed by peer_table.cc
};
static_assert(sizeof(PeerRecord) == 256);
static_assert(std::is_standard_layout_v<PeerRecord>);

struct PeerTableHeader {
  std::atomic<std::uint32_t> sequence;
  std::atomic<std::uint32_t> peers_end;  // above the highest rank that ever had a record
  std::atomic<std::uint64_t> words[31];  // OwnInfo
};
static_assert(sizeof(PeerTableHeader) == sizeof(PeerRecord));

inline constexpr std::uint32_t kMaxPeers = 1023;

struct PeerTableArea {
  std::atomic<std::uint32_t> shards[kShards];  // ShardRanks: the first in the low half
  PeerTableHeader header;
  PeerRecord peers[kMaxPeers];
};
static_assert(sizeof(PeerTableArea) == kPeerTableBytes);
static_assert(std::is_standard_layout_v<PeerTableArea>);

// A process-local view of the area. Cheap to copy; valid as long as the mapping.
class PeerTable final {
 public:
  explicit PeerTable(std::byte* area) noexcept : area_(reinterpret_cast<PeerTableArea*>(area)) {}

  // ---- the server
  // No shard has a holder, no rank a record, own() is empty.
  void init() noexcept;
  // Writes a whole record, with its state. One of another incarnation is not suspect.
  // Returns: INVALID_ARGUMENT for a rank without a record (kMaxPeers).
  Result<> set(const PeerInfo& peer);
  void forget(std::uint16_t rank) noexcept;
  // Requires: ranks.size() == kShards.
  void set_shard_map(std::span<const ShardRanks> ranks) noexcept;
  void set_own(const OwnInfo& own) noexcept;

  // ---- anybody
  // Returns: nothing for a rank without a record, or one that is being written again and again.
  [[nodiscard]] std::optional<PeerInfo> get(std::uint16_t rank) const noexcept;
  // All records that are not absent, by rank.
  void peers(std::vector<PeerInfo>& out) const;
  [[nodiscard]] ShardRanks shard_ranks(std::uint16_t shard) const noexcept {
    const std::uint32_t word = area_->shards[shard].load(std::memory_order_relaxed);
    return {static_cast<std::uint16_t>(word), static_cast<std::uint16_t>(word >> 16)};
  }
  // Returns: nothing without a cluster.
  [[nodiscard]] std::optional<OwnInfo> own() const noexcept;
  // Tells every process of the node not to read this rank before `until_ms`.
  void suspect(std::uint16_t rank, std::uint64_t until_ms) noexcept;
  // Returns: 0 for a rank that is not suspect.
  [[nodiscard]] std::uint64_t suspect_until(std::uint16_t rank) const noexcept;

 private:
  PeerTableArea* area_;
};

}  // namespace radixshmem
