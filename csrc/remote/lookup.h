// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The lookup: which nodes hold more of a path than this one, found by reading their memory.
//
// Rounds, each of which needs what the one before it read:
//   1  the directory lines of all keys from the local hit on, at whoever keeps their shards (with
//      more than kMaxFirstKeys of them every nth key first, then the rest: one round more)
//   2  the segments, and their parents, that the entries name for the holder of the deepest key; an
//      earlier key that it is not named for may be served by another holder
//   3  for each hole in what was verified: the parent of the segment behind it, and the lines of
//   the
//      holder's tree table; the same behind the end, if the path goes on there
//   4  the segments that these lines name
//   5  SWA, MAMBA: the side blocks
// Without a holder it ends after round 1, mostly after round 2. When less was verified than another
// holder claims, that one is tried, once; what this takes is counted apart.
//
// What a peer answers is hostile input: ids, classes, counts and positions are checked before use,
// and a block counts as found when its whole hash was compared. Slots are hints: they may be stale
// or torn; who wants the bytes takes a lease and is told the slots again.
//
// A round waits for `timeout` at most, all rounds for two of them. A peer that does not answer is
// given up, and suspect for every process of this node; so it adds one `timeout` to one lookup.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "transport/peer_reader.h"

namespace radixshmem {

class PeerSet;

inline constexpr std::size_t kMaxFirstKeys = 64;

struct LookupRequest {
  std::span<const BlockHash> hashes;  // the path from its root on
  // Blocks [0, local_hit) are the answer of this node: windows of `mask` included.
  Position local_hit = 0;
  std::uint32_t mask = kMaskFull;
  std::uint32_t swa_window_blocks = 0;  // of the geometry; 0 = it has no SWA
  std::uint32_t block_size = 0;         // tokens
  std::uint32_t segment_blocks = 0;
  std::chrono::microseconds timeout{2000};
  bool directory_only = false;  // round 1 alone: candidates, nothing verified
};

// Blocks [offset, offset + slots.size()) of the path, in slots of that rank.
struct RemoteFragment {
  Rank rank = kNoRank;
  Position offset = 0;
  std::vector<std::int32_t> slots;
};

// A node that says it holds blocks [0, blocks) at least; asked for SWA or MAMBA, that such a window
// ends in the key_grid() blocks from blocks - 1 on.
struct PullCandidate {
  Rank rank = kNoRank;
  Position blocks = 0;
};

struct LookupFigures {
  std::uint32_t rounds = 0;        // without those of a retry
  std::uint32_t retries = 0;       // other holders tried: 0 or 1
  std::uint32_t retry_rounds = 0;  // of that
  std::uint32_t reads = 0;
  std::uint64_t bytes = 0;
  std::uint32_t most_reads_to_one_peer = 0;
  std::uint32_t stale_entries = 0;  // of the directory: another life, or a segment that is another
  std::uint32_t skipped_peers = 0;  // would have been read, but not connected or suspect
  std::uint32_t timeouts = 0;       // peers that did not answer in time
  std::uint32_t failures = 0;       // peers whose reader broke
};

struct RemoteHit {
  struct Mamba {
    Rank rank = kNoRank;
    SlotId slot = 0;
  };

  Position common_hit = 0;           // local_hit, or more
  std::vector<RemoteFragment> full;  // [local_hit, common_hit) in order, without gaps
  Position swa_start = 0;
  std::vector<std::int32_t> swa_slots;  // [swa_start, common_hit) when common_hit > local_hit
  Rank swa_rank = kNoRank;
  std::optional<Mamba> mamba;
  std::vector<PullCandidate> candidates;  // deepest first
  LookupFigures figures;
};

// Thread safety: any thread; lookups of one PeerSet go one after the other, and one that does not
// get its turn in ten times `timeout` (100 ms at least) answers that nothing was found.
[[nodiscard]] RemoteHit lookup(PeerSet& peers, const LookupRequest& request);

}  // namespace radixshmem
