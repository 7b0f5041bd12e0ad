// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Order of a write: sequence odd, the words (release), sequence even (release). Of a read: sequence
// (acquire), the words (acquire), the sequence again: a word of a later write carries with it that
// the sequence has moved.
#include "directory/peer_table.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/memory_orders.h"

namespace radixshmem {
namespace {

constexpr int kReadAttempts = 64;
constexpr std::uint32_t kNoShardRanks = 0xffffffff;
constexpr std::uint64_t kOwnPresent = 1;
constexpr std::uint64_t kOwnDraining = 2;
constexpr std::size_t kPeerWords = 10;
constexpr std::size_t kOwnWords = 2;

constexpr std::uint64_t pair(std::uint32_t high, std::uint32_t low) noexcept {
  return std::uint64_t{high} << 32 | low;
}
constexpr std::uint32_t high(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word >> 32);
}
constexpr std::uint32_t low(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word);
}

template <std::size_t N>
using Words = std::array<std::uint64_t, N>;

Words<kPeerWords> pack(const PeerInfo& p) noexcept {
  return {pair(p.warming ? 1 : 0, p.rank),
          p.incarnation,
          p.peer_readable_bytes,
          p.directory_offset,
          p.arena_offset,
          p.side_offset,
          p.table_offset,
          pair(p.directory_lines, p.arena_units),
          pair(p.side_blocks, p.side_bytes),
          pair(p.table_lines, p.table_lines_max)};
}

PeerInfo unpack(PeerState state, const Words<kPeerWords>& words) noexcept {
  PeerInfo p;
  p.state = state;
  p.warming = high(words[0]) != 0;
  p.rank = static_cast<std::uint16_t>(words[0]);
  p.incarnation = words[1];
  p.peer_readable_bytes = words[2];
  p.directory_offset = words[3];
  p.arena_offset = words[4];
  p.side_offset = words[5];
  p.table_offset = words[6];
  p.directory_lines = high(words[7]);
  p.arena_units = low(words[7]);
  p.side_blocks = high(words[8]);
  p.side_bytes = low(words[8]);
  p.table_lines = high(words[9]);
  p.table_lines_max = low(words[9]);
  return p;
}

// Calls write() while the sequence word is odd.
template <typename Write>
void write_under(std::atomic<std::uint32_t>& sequence, Write write) noexcept {
  const std::uint32_t odd = sequence.load(kRelaxed) | 1;
  sequence.store(odd, kRelaxed);
  write();
  sequence.store(odd + 1, kRelease);
}

// Calls read() until it ran within one even sequence. Returns: whether it did.
template <typename Read>
bool read_under(const std::atomic<std::uint32_t>& sequence, Read read) noexcept {
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    const std::uint32_t before = sequence.load(kAcquire);
    if ((before & 1) != 0) continue;
    read();
    if (sequence.load(kRelaxed) == before) return true;
  }
  return false;
}

}  // namespace

void PeerTable::init() noexcept {
  write_under(area_->header.sequence, [&] {
    for (auto& word : area_->header.words) word.store(0, kRelease);
  });
  const std::uint32_t end = std::min(area_->header.peers_end.load(kRelaxed), kMaxPeers);
  for (std::uint32_t rank = 0; rank < end; ++rank) forget(static_cast<std::uint16_t>(rank));
  for (auto& shard : area_->shards) shard.store(kNoShardRanks, kRelaxed);
}

Result<> PeerTable::set(const PeerInfo& peer) {
  if (peer.rank >= kMaxPeers) {
    return invalid_argument("peer table: rank " + std::to_string(peer.rank) + " exceeds " +
                            std::to_string(kMaxPeers - 1) +
                            ": remove nodes that are gone from the cluster's registry");
  }
  PeerRecord& record = area_->peers[peer.rank];
  const auto known = get(peer.rank);
  write_under(record.sequence, [&] {
    if (!known || known->incarnation != peer.incarnation) {
      record.suspect_until_ms.store(0, kRelease);
    }
    record.state.store(static_cast<std::uint32_t>(peer.state), kRelease);
    const auto words = pack(peer);
    for (std::size_t i = 0; i < words.size(); ++i) record.words[i].store(words[i], kRelease);
  });
  auto& end = area_->header.peers_end;
  if (end.load(kRelaxed) <= peer.rank) end.store(peer.rank + 1u, kRelease);
  return Unit{};
}

void PeerTable::forget(std::uint16_t rank) noexcept {
  if (rank >= kMaxPeers) return;
  PeerRecord& record = area_->peers[rank];
  write_under(record.sequence, [&] {
    record.state.store(static_cast<std::uint32_t>(PeerState::kAbsent), kRelease);
    record.suspect_until_ms.store(0, kRelease);
  });
}

void PeerTable::set_shard_map(std::span<const ShardRanks> ranks) noexcept {
  RADIX_CHECK(ranks.size() == kShards, ranks.size());
  for (std::size_t i = 0; i < kShards; ++i) {
    area_->shards[i].store(std::uint32_t{ranks[i][1]} << 16 | ranks[i][0], kRelaxed);
  }
}

void PeerTable::set_own(const OwnInfo& own) noexcept {
  write_under(area_->header.sequence, [&] {
    const std::uint64_t flags = kOwnPresent | (own.draining ? kOwnDraining : 0);
    area_->header.words[0].store(flags << 32 | own.rank, kRelease);
    area_->header.words[1].store(own.digest, kRelease);
  });
}

std::optional<PeerInfo> PeerTable::get(std::uint16_t rank) const noexcept {
  if (rank >= kMaxPeers) return std::nullopt;
  const PeerRecord& record = area_->peers[rank];
  std::uint32_t state = 0;
  Words<kPeerWords> words;
  const bool whole = read_under(record.sequence, [&] {
    state = record.state.load(kAcquire);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = record.words[i].load(kAcquire);
  });
  if (!whole || state == static_cast<std::uint32_t>(PeerState::kAbsent)) return std::nullopt;
  return unpack(static_cast<PeerState>(state), words);
}

void PeerTable::peers(std::vector<PeerInfo>& out) const {
  out.clear();
  const std::uint32_t end = std::min(area_->header.peers_end.load(kAcquire), kMaxPeers);
  for (std::uint32_t rank = 0; rank < end; ++rank) {
    if (const auto peer = get(static_cast<std::uint16_t>(rank))) out.push_back(*peer);
  }
}

std::optional<OwnInfo> PeerTable::own() const noexcept {
  Words<kOwnWords> words;
  const bool whole = read_under(area_->header.sequence, [&] {
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = area_->header.words[i].load(kAcquire);
  });
  const std::uint32_t flags = high(words[0]);
  if (!whole || (flags & kOwnPresent) == 0) return std::nullopt;
  return OwnInfo{static_cast<std::uint16_t>(words[0]), (flags & kOwnDraining) != 0, words[1]};
}

void PeerTable::suspect(std::uint16_t rank, std::uint64_t until_ms) noexcept {
  if (rank < kMaxPeers) area_->peers[rank].suspect_until_ms.store(until_ms, kRelaxed);
}

std::uint64_t PeerTable::suspect_until(std::uint16_t rank) const noexcept {
  return rank < kMaxPeers ? area_->peers[rank].suspect_until_ms.load(kRelaxed) : 0;
}

}  // namespace radixshmem
