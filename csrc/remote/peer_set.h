// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The peers that this process can read, one reader each.
//
// A background thread makes readers and gives them to adopt(), which looks whose memory they read;
// lookups use them and never connect. A reader is used as long as it works, the peer table says
// that the same life of its rank is live, and nobody on this node has waited in vain for the peer
// since adopt(): whoever does marks it suspect in the peer table, and all processes leave their
// readers of it alone until their background threads have adopted them again. So a stopped peer
// costs one timeout of one query of the node, however long it is stopped. A reader that fails is
// dropped: that costs nobody any time.
//
// The own node is a peer too, with a reader of its own memory: its part of the directory is read
// like all others.
// Thread safety: all calls from any thread. A forked child makes a PeerSet of its own.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/error.h"
#include "directory/peer_table.h"
#include "transport/peer_reader.h"

namespace radixshmem {

inline constexpr std::chrono::milliseconds kSuspectFor{1000};

struct PeerConnection {
  Rank rank = kNoRank;
  std::uint64_t incarnation = 0;
  TransportKind kind = TransportKind::kShm;
  bool suspect = false;  // not used until it is taken and adopted again
  std::uint64_t reads = 0;
  std::uint64_t bytes = 0;
};

class PeerSet final {
 public:
  // Requires: the table stays mapped. `may_mark`: it is mapped writable.
  PeerSet(PeerTable table, bool may_mark) noexcept : table_(table), may_mark_(may_mark) {}
  PeerSet(const PeerSet&) = delete;
  PeerSet& operator=(const PeerSet&) = delete;

  // Takes a reader that reads the region of this life of `rank`, instead of one that was there.
  // Reads the region's header first, off the path of any lookup.
  // Returns: TIMEOUT or SYSTEM when it cannot be read, MISMATCH when it is of another version or
  // another life, NOT_READY when it is closed. The reader is gone then.
  Result<> adopt(Rank rank, std::uint64_t incarnation, std::unique_ptr<PeerReader> reader,
                 Deadline deadline);
  void drop(Rank rank) noexcept;
  // Takes the reader out, to adopt it again. Returns: nullptr if there is none.
  [[nodiscard]] std::unique_ptr<PeerReader> take(Rank rank) noexcept;
  [[nodiscard]] std::vector<PeerConnection> connections() const;
  // Returns: the live peers that lookups had to do without since the last call.
  [[nodiscard]] std::vector<Rank> wanted();

  [[nodiscard]] const PeerTable& table() const noexcept { return table_; }

 private:
  friend class LookupTurn;

  struct Peer {
    std::unique_ptr<PeerReader> reader;
    std::uint64_t incarnation = 0;
    std::uint64_t suspect_until = 0;  // what the table said when the reader was adopted
    std::uint64_t reads = 0;
    std::uint64_t bytes = 0;
    bool wanted = false;
  };

  // The rest requires the mutex.
  // Returns: whether there is a reader that works, and nobody has waited in vain for the peer
  // since.
  [[nodiscard]] bool trusted(Rank rank) const noexcept;
  enum class Fault {
    kFailed,  // the reader broke
    kSilent,  // no answer in the time of a lookup
    kLate,    // no answer in what others had left of it
  };
  // Requires: a reader with nothing in flight.
  void give_up(Rank rank, Fault fault) noexcept;

  PeerTable table_;
  bool may_mark_;
  mutable std::mutex mutex_;
  std::array<Peer, kMaxPeers> peers_{};
  std::uint32_t turns_ = 0;
};

}  // namespace radixshmem
