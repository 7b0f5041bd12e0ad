// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "remote/peer_set.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "layout/region_header.h"

namespace radixshmem {
namespace {

// What is read of a peer's region before anything else.
using HeaderLine = std::array<std::byte, kCacheLine>;
static_assert(offsetof(RegionHeader, incarnation) + sizeof(std::uint64_t) <= sizeof(HeaderLine));

template <typename Word>
Word word_at(const HeaderLine& line, std::size_t offset) noexcept {
  Word word;
  std::memcpy(&word, line.data() + offset, sizeof word);
  return word;
}

std::string of_rank(Rank rank) {
  return "index of rank " + std::to_string(rank);
}

Result<> read_header_line(PeerReader& reader, Rank rank, HeaderLine& line, Deadline deadline) {
  const ReadOp op{PeerRegion::kIndex, 0, sizeof line, line.data()};
  if (!reader.post({&op, 1})) {
    return Error{ErrorCode::SYSTEM, of_rank(rank) + ": the connection is broken; make another one"};
  }
  PeerReader* const waiting = &reader;
  if (!wait_all({&waiting, 1}, deadline)) {
    reader.abandon();
    return Error{ErrorCode::TIMEOUT, of_rank(rank) + ": no answer to a read of its header"};
  }
  if (reader.poll() == PeerReader::Progress::kFailed) {
    return Error{ErrorCode::SYSTEM, of_rank(rank) + ": a read of its header failed"};
  }
  return Unit{};
}

Result<> check_header_line(const HeaderLine& line, Rank rank, std::uint64_t incarnation) {
  const auto mismatch = [&](const char* what, std::uint64_t found, std::uint64_t wanted) {
    return Error{ErrorCode::MISMATCH, of_rank(rank) + ": " + what + " is " + std::to_string(found) +
                                          ", expected " + std::to_string(wanted)};
  };
  const auto magic = word_at<std::uint64_t>(line, offsetof(RegionHeader, magic));
  if (magic != kIndexMagic) return mismatch("the magic", magic, kIndexMagic);
  const auto version = word_at<std::uint64_t>(line, offsetof(RegionHeader, layout_version));
  if (version != layout_version()) return mismatch("layout version", version, layout_version());
  const auto found = word_at<std::uint64_t>(line, offsetof(RegionHeader, incarnation));
  if (found != incarnation) return mismatch("incarnation", found, incarnation);
  const auto state = word_at<std::uint32_t>(line, offsetof(RegionHeader, state));
  if (state != static_cast<std::uint32_t>(RegionState::kReady)) {
    return Error{ErrorCode::NOT_READY,
                 of_rank(rank) + ": closed or superseded (state " + std::to_string(state) + ")"};
  }
  return Unit{};
}

}  // namespace

Result<> PeerSet::adopt(Rank rank, std::uint64_t incarnation, std::unique_ptr<PeerReader> reader,
                        Deadline deadline) {
  if (rank >= kMaxPeers) {
    return invalid_argument("rank " + std::to_string(rank) + " has no record in the peer table (" +
                            std::to_string(kMaxPeers) + ")");
  }
  // Before the read: who is found silent later is suspect again.
  const std::uint64_t suspect_until = table_.suspect_until(rank);
  HeaderLine line;
  if (auto read = read_header_line(*reader, rank, line, deadline); !read) return read;
  if (auto checked = check_header_line(line, rank, incarnation); !checked) return checked;
  Peer peer{std::move(reader), incarnation, suspect_until};
  {
    const std::lock_guard guard(mutex_);
    std::swap(peers_[rank], peer);
  }
  return Unit{};
}

void PeerSet::drop(Rank rank) noexcept {
  take(rank).reset();
}

std::unique_ptr<PeerReader> PeerSet::take(Rank rank) noexcept {
  if (rank >= kMaxPeers) return nullptr;
  const std::lock_guard guard(mutex_);
  return std::move(peers_[rank].reader);
}

std::vector<PeerConnection> PeerSet::connections() const {
  std::vector<PeerConnection> out;
  const std::lock_guard guard(mutex_);
  for (Rank rank = 0; rank < kMaxPeers; ++rank) {
    const Peer& peer = peers_[rank];
    if (!peer.reader) continue;
    out.push_back(
        {rank, peer.incarnation, peer.reader->kind(), !trusted(rank), peer.reads, peer.bytes});
  }
  return out;
}

std::vector<Rank> PeerSet::wanted() {
  std::vector<Rank> out;
  const std::lock_guard guard(mutex_);
  for (Rank rank = 0; rank < kMaxPeers; ++rank) {
    if (std::exchange(peers_[rank].wanted, false)) out.push_back(rank);
  }
  return out;
}

bool PeerSet::trusted(Rank rank) const noexcept {
  const Peer& peer = peers_[rank];
  return peer.reader && !peer.reader->broken() && peer.suspect_until == table_.suspect_until(rank);
}

void PeerSet::give_up(Rank rank, Fault fault) noexcept {
  Peer& peer = peers_[rank];
  const bool silent = fault == Fault::kSilent;
  if (silent && may_mark_) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const auto until = std::chrono::duration_cast<std::chrono::milliseconds>(now + kSuspectFor);
    table_.suspect(rank, static_cast<std::uint64_t>(until.count()));
  }
  const bool unusable = fault == Fault::kFailed || peer.reader->broken();
  if (unusable || (silent && !may_mark_)) peer.reader.reset();
}

}  // namespace radixshmem
