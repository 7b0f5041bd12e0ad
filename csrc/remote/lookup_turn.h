// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One lookup's turn at a PeerSet: which peers it may read, until when, and what it cost.
//
// What the peer table says of a rank is looked up once per turn.
// Thread safety: none; the turn holds the PeerSet's mutex.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "remote/lookup.h"
#include "remote/peer_set.h"

namespace radixshmem {

class LookupTurn final {
 public:
  LookupTurn(PeerSet& peers, std::chrono::microseconds timeout, LookupFigures& figures);

  // Returns: false when other lookups kept the PeerSet for too long, or there is no cluster.
  [[nodiscard]] bool granted() const noexcept { return lock_.owns_lock() && own_.has_value(); }
  // The rest requires granted().
  [[nodiscard]] const OwnInfo& own() const noexcept { return *own_; }
  // Returns: which turn of the PeerSet it is.
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  [[nodiscard]] ShardRanks shard_ranks(std::uint16_t shard) const noexcept {
    return peers_.table_.shard_ranks(shard);
  }
  // Returns: where things lie at a live peer of this cluster; nullptr for any other rank.
  [[nodiscard]] const PeerInfo* live(Rank rank);
  // Returns: the same of a peer that may be read now; one that may not is counted, once.
  [[nodiscard]] const PeerInfo* readable(Rank rank);

  struct Read {
    Rank rank = kNoRank;
    ReadOp op;
    bool done = false;
  };
  // Makes all reads at once and waits; those of a peer that is given up are not done. Requires: all
  // ranks were readable. Returns: false, and makes none, when the time is over.
  bool run(std::span<Read> reads);

 private:
  struct Known {
    PeerInfo info;
    bool live = false;
    bool skipped = false;          // counted as such
    PeerReader* reader = nullptr;  // nullptr: not to be read
    std::uint32_t reads = 0;
    // Of the present round.
    std::vector<ReadOp> ops;
    std::vector<Read*> from;  // of each of ops
    std::size_t next = 0;     // ops before it are done
    std::size_t posted = 0;   // ops in flight from there
  };

  [[nodiscard]] Known& known(Rank rank);
  // Posts the next batch of every peer that has one. Returns: how many are in flight.
  std::size_t post();
  void collect(bool long_enough);
  void take_in(Known& peer) noexcept;
  void give_up(Known& peer, PeerSet::Fault fault) noexcept;

  PeerSet& peers_;
  std::chrono::microseconds timeout_;
  LookupFigures& figures_;
  std::unique_lock<std::mutex> lock_;
  std::optional<OwnInfo> own_;
  std::uint32_t number_ = 0;
  std::chrono::nanoseconds left_;  // of the time to wait; what this process does does not count
  std::array<std::uint16_t, kMaxPeers> index_{};  // of known_, by rank; + 1
  std::deque<Known> known_;                       // which are pointed at
  std::vector<PeerReader*> in_flight_;
};

}  // namespace radixshmem
