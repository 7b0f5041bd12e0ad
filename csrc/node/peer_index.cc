// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "node/peer_index.h"

#include <algorithm>
#include <utility>

#include "node/call.h"
#include "transport/shm_reader.h"

namespace radixshmem {
namespace {

constexpr std::chrono::microseconds kOneSidedTimeout{2'000};
constexpr std::chrono::microseconds kStreamTimeout{20'000};

void add_figures(LookupFigures& sum, const LookupFigures& one) noexcept {
  sum.rounds += one.rounds;
  sum.retries += one.retries;
  sum.retry_rounds += one.retry_rounds;
  sum.reads += one.reads;
  sum.bytes += one.bytes;
  sum.most_reads_to_one_peer = std::max(sum.most_reads_to_one_peer, one.most_reads_to_one_peer);
  sum.stale_entries += one.stale_entries;
  sum.skipped_peers += one.skipped_peers;
  sum.timeouts += one.timeouts;
  sum.failures += one.failures;
}

}  // namespace

PeerIndex::PeerIndex(std::shared_ptr<Session> session, std::uint32_t timeout_us)
    : session_(std::move(session)),
      timeout_us_(timeout_us),
      peers_(session_->peer_table(), /*may_mark=*/!session_->read_only()) {}

Result<std::vector<PeerIndex::Life>> PeerIndex::living() const {
  const Session::Call call(*session_);
  if (!call) return session_->refusal(call.code());
  std::vector<PeerInfo> known;
  peers_.table().peers(known);
  std::vector<Life> living;
  for (const PeerInfo& peer : known) {
    if (peer.state == PeerState::kLive) living.push_back({peer.rank, peer.incarnation});
  }
  return living;
}

std::vector<PeerConnection> PeerIndex::connections() const {
  const Session::Call call(*session_);
  return call ? peers_.connections() : std::vector<PeerConnection>();
}

std::vector<Rank> PeerIndex::wanted() {
  const Session::Call call(*session_);
  return call ? peers_.wanted() : std::vector<Rank>();
}

Result<bool> PeerIndex::adopt_own(const Life& life, Deadline deadline) {
  std::string name;
  {
    const Session::Call call(*session_);
    if (!call) return session_->refusal(call.code());
    const auto own = peers_.table().own();
    if (!own || own->rank != life.rank) return false;
    name = session_->name();
  }
  auto reader = ShmReader::open({name, life.incarnation, "", "", 0});
  if (!reader) return reader.error();
  if (auto done = adopt(life, std::move(reader).value(), deadline); !done) return done.error();
  return true;
}

Result<> PeerIndex::adopt(const Life& life, std::unique_ptr<PeerReader> reader, Deadline deadline) {
  const Session::Call call(*session_);
  if (!call) return session_->refusal(call.code());
  Result<> adopted = peers_.adopt(life.rank, life.incarnation, std::move(reader), deadline);
  look_for_streams();
  return adopted;
}

void PeerIndex::drop(Rank rank) {
  peers_.drop(rank);
  look_for_streams();
}

// Here, where connections change, and not in each lookup.
void PeerIndex::look_for_streams() {
  const bool any = std::ranges::any_of(
      connections(), [](const PeerConnection& c) { return c.kind == TransportKind::kTcp; });
  any_stream_.store(any, std::memory_order_relaxed);
}

Result<bool> PeerIndex::take_back(const Life& life, Deadline deadline) {
  const auto all = connections();
  const auto same = std::ranges::find_if(all, [&](const PeerConnection& c) {
    return c.rank == life.rank && c.incarnation == life.incarnation;
  });
  if (same == all.end()) return false;
  auto reader = peers_.take(life.rank);
  if (reader == nullptr || reader->broken()) return false;
  return adopt(life, std::move(reader), deadline).ok();
}

std::chrono::microseconds PeerIndex::timeout() const {
  if (timeout_us_ != 0) return std::chrono::microseconds(timeout_us_);
  return any_stream_.load(std::memory_order_relaxed) ? kStreamTimeout : kOneSidedTimeout;
}

Result<std::optional<RemoteHit>> PeerIndex::lookup(std::span<const BlockHash> hashes,
                                                   std::uint32_t mask, Position local_hit,
                                                   bool directory_only) {
  const Session::Call call(*session_);
  if (!call) return session_->refusal(call.code());
  if (!peers_.table().own()) return std::optional<RemoteHit>();
  const IndexPlan& plan = session_->plan();
  LookupRequest request;
  request.hashes = hashes;
  request.local_hit = local_hit;
  request.mask = mask;
  request.swa_window_blocks = plan.swa_window_blocks;
  request.block_size = plan.block_size;
  request.segment_blocks = session_->tree().segment_blocks();
  request.timeout = timeout();
  request.directory_only = directory_only;
  RemoteHit found = radixshmem::lookup(peers_, request);
  add(found, local_hit);
  return std::optional<RemoteHit>(std::move(found));
}

void PeerIndex::add(const RemoteHit& found, Position local_hit) {
  const std::lock_guard guard(totals_mutex_);
  ++totals_.lookups;
  if (found.common_hit > local_hit) ++totals_.deeper;
  add_figures(totals_.sums, found.figures);
  const std::size_t last = totals_.rounds.size() - 1;
  ++totals_.rounds[std::min<std::size_t>(found.figures.rounds, last)];
}

LookupTotals PeerIndex::totals() const {
  const std::lock_guard guard(totals_mutex_);
  return totals_;
}

}  // namespace radixshmem
