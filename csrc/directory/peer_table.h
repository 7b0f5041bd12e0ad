// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What a node knows of its cluster, for every process on it: the area kPeerTable.
//
//   shard map   u16[65,536][2]   the rank that keeps each shard, and its replica; 0xffff = none
//   header      own rank, own digest, counts; one cache line
//   peers       1,023 records of 256 bytes
//
// Who may write: the radix-server, one thread; suspect_until_ms anybody. Who may read: any process
// that maps the region. Records are read under their sequence word (odd while written); a shard map
// that is read while it changes sends a reader to a rank that does not have the key: a miss.
// Invariant: a record that is not kAbsent describes one incarnation; another one of the same rank
// is written over it as a whole.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

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

struct PeerRecord {
  std::atomic<std::uint32_t> sequence;
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint64_t> suspect_until_ms;  // CLOCK_MONOTONIC of this node
  std::atomic<std::uint64_t> words[30];         // PeerInfo, packed by peer_table.cc
};
static_assert(sizeof(PeerRecord) == 256);
static_assert(std::is_standard_layout_v<PeerRecord>);

inline constexpr std::uint32_t kMaxPeers = 1023;

}  // namespace radixshmem
