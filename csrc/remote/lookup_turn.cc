// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "remote/lookup_turn.h"

#include <algorithm>
#include <bit>
#include <thread>

namespace radixshmem {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// Another thread's lookup ends soon, if it only gets a processor.
constexpr std::chrono::milliseconds kLeastTurnWait{100};
constexpr std::chrono::microseconds kTurnLook{20};

// Returns: whether `count` items from `offset` on lie in what a peer may read.
bool fits(const PeerInfo& info, std::uint64_t offset, std::uint64_t count,
          std::uint64_t bytes) noexcept {
  return offset <= info.peer_readable_bytes && count * bytes <= info.peer_readable_bytes - offset;
}

bool sound(const PeerInfo& info) noexcept {
  return fits(info, info.directory_offset, info.directory_lines, kCacheLine) &&
         fits(info, info.arena_offset, info.arena_units, kUnitBytes) &&
         fits(info, info.side_offset, info.side_blocks, info.side_bytes) &&
         fits(info, info.table_offset, info.table_lines, kCacheLine) &&
         std::has_single_bit(info.table_lines);
}

}  // namespace

LookupTurn::LookupTurn(PeerSet& peers, std::chrono::microseconds timeout, LookupFigures& figures)
    : peers_(peers),
      timeout_(timeout),
      figures_(figures),
      lock_(peers.mutex_, std::defer_lock),
      left_(2 * timeout) {
  const auto end = steady_clock::now() + std::max<nanoseconds>(10 * timeout, kLeastTurnWait);
  while (!lock_.try_lock()) {
    if (steady_clock::now() > end) return;
    std::this_thread::sleep_for(kTurnLook);
  }
  own_ = peers.table_.own();
  number_ = peers.turns_++;
}

LookupTurn::Known& LookupTurn::known(Rank rank) {
  if (index_[rank] != 0) return known_[index_[rank] - 1u];
  Known& peer = known_.emplace_back();
  index_[rank] = static_cast<std::uint16_t>(known_.size());
  const auto info = peers_.table_.get(rank);
  if (!info || info->state != PeerState::kLive) return peer;
  peer.info = *info;
  peer.info.rank = rank;
  peer.live = true;
  const PeerSet::Peer& connected = peers_.peers_[rank];
  if (peers_.trusted(rank) && connected.incarnation == info->incarnation && sound(*info)) {
    peer.reader = connected.reader.get();
  }
  return peer;
}

const PeerInfo* LookupTurn::live(Rank rank) {
  if (rank >= kMaxPeers) return nullptr;
  const Known& peer = known(rank);
  return peer.live ? &peer.info : nullptr;
}

const PeerInfo* LookupTurn::readable(Rank rank) {
  if (rank >= kMaxPeers) return nullptr;
  Known& peer = known(rank);
  if (peer.reader != nullptr) return &peer.info;
  if (peer.skipped) return nullptr;
  peer.skipped = true;
  ++figures_.skipped_peers;
  peers_.peers_[rank].wanted = peer.live;
  return nullptr;
}

bool LookupTurn::run(std::span<Read> reads) {
  if (left_ <= left_.zero()) return false;
  for (Known& peer : known_) {
    peer.ops.clear();
    peer.from.clear();
    peer.next = peer.posted = 0;
  }
  for (Read& read : reads) {
    Known& peer = known(read.rank);
    if (peer.reader == nullptr) continue;
    peer.ops.push_back(read.op);
    peer.from.push_back(&read);
  }
  while (post() != 0) {
    const auto begin = std::chrono::steady_clock::now();
    wait_all(in_flight_, begin + std::min<nanoseconds>(timeout_, left_));
    const auto waited = std::chrono::steady_clock::now() - begin;
    left_ -= waited;
    collect(/*long_enough=*/waited >= timeout_ / 2);
  }
  return true;
}

std::size_t LookupTurn::post() {
  in_flight_.clear();
  for (Known& peer : known_) {
    if (peer.reader == nullptr || peer.next == peer.ops.size()) continue;
    peer.posted = std::min(peer.ops.size() - peer.next, kMaxReads);
    if (!peer.reader->post(std::span(peer.ops).subspan(peer.next, peer.posted))) {
      give_up(peer, PeerSet::Fault::kFailed);
      continue;
    }
    in_flight_.push_back(peer.reader);
  }
  return in_flight_.size();
}

void LookupTurn::take_in(Known& peer) noexcept {
  std::uint64_t bytes = 0;
  for (std::size_t i = peer.next; i < peer.next + peer.posted; ++i) {
    peer.from[i]->done = true;
    bytes += peer.ops[i].length;
  }
  const auto reads = static_cast<std::uint32_t>(peer.posted);
  peer.reads += reads;
  figures_.reads += reads;
  figures_.bytes += bytes;
  figures_.most_reads_to_one_peer = std::max(figures_.most_reads_to_one_peer, peer.reads);
  PeerSet::Peer& total = peers_.peers_[peer.info.rank];
  total.reads += reads;
  total.bytes += bytes;
  peer.next += peer.posted;
  peer.posted = 0;
}

void LookupTurn::collect(bool long_enough) {
  for (Known& peer : known_) {
    if (peer.reader == nullptr || peer.posted == 0) continue;
    switch (peer.reader->poll()) {
      case PeerReader::Progress::kDone:
        take_in(peer);
        break;
      case PeerReader::Progress::kFailed:
        give_up(peer, PeerSet::Fault::kFailed);
        break;
      case PeerReader::Progress::kPending:
        peer.reader->abandon();
        // When others have used up the time, it is no fault of this peer.
        give_up(peer, long_enough ? PeerSet::Fault::kSilent : PeerSet::Fault::kLate);
        break;
    }
  }
}

void LookupTurn::give_up(Known& peer, PeerSet::Fault fault) noexcept {
  ++(fault == PeerSet::Fault::kFailed ? figures_.failures : figures_.timeouts);
  peers_.give_up(peer.info.rank, fault);
  peer.reader = nullptr;
  peer.skipped = true;  // it is counted already
  peer.posted = 0;
}

}  // namespace radixshmem
