// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One process's view of its peers' indexes, beside its session.
//
// It reads the peer table and the own directory in the session's region: each call is one of the
// session too, and refused after its close().
// Thread safety: all calls from any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "node/session.h"
#include "remote/lookup.h"
#include "remote/peer_set.h"

namespace radixshmem {

// Totals since the start of this process.
struct LookupTotals {
  std::uint64_t lookups = 0;
  std::uint64_t deeper = 0;               // that found more than the own node has
  LookupFigures sums;                     // most_reads_to_one_peer: the highest of all
  std::array<std::uint64_t, 8> rounds{};  // lookups by rounds, the last: that many or more
};

class PeerIndex final {
 public:
  // `timeout_us` of a lookup; 0: 2,000 while all peers are read one-sided, 20,000 otherwise.
  PeerIndex(std::shared_ptr<Session> session, std::uint32_t timeout_us);
  PeerIndex(const PeerIndex&) = delete;
  PeerIndex& operator=(const PeerIndex&) = delete;

  struct Life {
    Rank rank = kNoRank;
    std::uint64_t incarnation = 0;
  };
  // Returns: whom the peer table says to read, this node included.
  Result<std::vector<Life>> living() const;
  // Returns: nothing after the session was closed.
  [[nodiscard]] std::vector<PeerConnection> connections() const;
  // Returns: the live peers that lookups had to do without since the last call.
  [[nodiscard]] std::vector<Rank> wanted();

  // A reader of the own memory, when `life` is this node's. Returns: whether it is.
  Result<bool> adopt_own(const Life& life, Deadline deadline);
  Result<> adopt(const Life& life, std::unique_ptr<PeerReader> reader, Deadline deadline);
  // Looks whether a suspect peer answers again. Returns: whether it does.
  Result<bool> take_back(const Life& life, Deadline deadline);
  void drop(Rank rank);

  // What peers have beyond `local_hit`; with `directory_only` only who claims to have more.
  // Nothing when this node is in no cluster.
  Result<std::optional<RemoteHit>> lookup(std::span<const BlockHash> hashes, std::uint32_t mask,
                                          Position local_hit, bool directory_only);
  // Returns: how long a round of a lookup waits now.
  [[nodiscard]] std::chrono::microseconds timeout() const;
  [[nodiscard]] LookupTotals totals() const;
  [[nodiscard]] Session& session() const noexcept { return *session_; }

 private:
  void look_for_streams();
  void add(const RemoteHit& found, Position local_hit);

  std::shared_ptr<Session> session_;
  std::uint32_t timeout_us_;
  PeerSet peers_;
  std::atomic<bool> any_stream_{false};
  mutable std::mutex totals_mutex_;
  LookupTotals totals_;
};

}  // namespace radixshmem
