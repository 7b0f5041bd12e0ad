// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "remote/lookup.h"

#include <algorithm>

#include "base/check.h"
#include "remote/aux_windows.h"
#include "remote/path_search.h"

namespace radixshmem {
namespace {

class Lookup final {
 public:
  Lookup(LookupTurn& turn, const LookupRequest& request, RemoteHit& hit)
      : turn_(turn),
        request_(request),
        hit_(hit),
        local_(hit.common_hit),
        grid_(key_grid(request.block_size, request.segment_blocks)),
        aux_((request.mask & kMaskSwa ? 1u : 0u) | (request.mask & kMaskMamba ? 2u : 0u)),
        cover_(request.hashes, first_block() / request.segment_blocks * request.segment_blocks,
               request.segment_blocks),
        search_(turn, claims_, cover_, hit.figures) {}

  void run();

 private:
  // Returns: the first block that a window of a longer answer may need of its holder.
  [[nodiscard]] Position window_start(Position shortest) const noexcept {
    if ((request_.mask & kMaskSwa) == 0) return shortest - 1;
    return shortest - std::min(shortest, request_.swa_window_blocks);
  }
  [[nodiscard]] Position first_block() const noexcept {
    return aux_ == 0 ? local_ : std::min(local_, window_start(local_ + 1));
  }
  void note_candidates();
  void spread_load();
  void attempt(const KeyClaims::Deepest& holder, Rank rival, std::uint32_t& rounds);
  void attempt_aux(const Wanted& wanted, std::uint32_t& rounds);

  LookupTurn& turn_;
  const LookupRequest& request_;
  RemoteHit& hit_;
  const Position local_;
  const std::uint32_t grid_;
  const std::uint32_t aux_;  // of directory_words.h
  KeyClaims claims_;
  std::vector<KeyClaims::Deepest> holders_;
  PathCover cover_;
  PathSearch search_;
};

void Lookup::run() {
  // A window may end in the granule of a key before the local hit.
  const Position from = aux_ == 0 ? local_ : first_block() / grid_ * grid_;
  claims_.read(turn_, request_, from, grid_, hit_.figures);
  holders_ = claims_.deepest(aux_);
  note_candidates();
  if (request_.directory_only || holders_.empty()) return;
  spread_load();
  const KeyClaims::Deepest first = holders_.front();
  const bool tied = aux_ == 0 && holders_.size() > 1 && holders_[1].key == first.key;
  attempt(first, tied ? holders_[1].rank : kNoRank, hit_.figures.rounds);

  for (const KeyClaims::Deepest& other : holders_) {
    if (other.rank == first.rank) continue;
    // A window that has not been found may end anywhere in the granule.
    const bool any = aux_ != 0 && hit_.common_hit == local_;
    if (claims_.keys()[other.key].position + (any ? grid_ : 1) <= hit_.common_hit) return;
    ++hit_.figures.retries;
    attempt(other, kNoRank, hit_.figures.retry_rounds);
    return;
  }
}

void Lookup::note_candidates() {
  std::erase_if(holders_, [&](const KeyClaims::Deepest& holder) {
    const Position key = claims_.keys()[holder.key].position;
    return (aux_ == 0 ? key : key + grid_ - 1) < local_;
  });
  for (const KeyClaims::Deepest& holder : holders_) {
    hit_.candidates.push_back({holder.rank, claims_.keys()[holder.key].position + 1});
  }
}

// Lookups of one path take turns between holders that are equally good.
void Lookup::spread_load() {
  const KeyClaims::Deepest& first = holders_.front();
  const auto other = std::find_if(holders_.begin(), holders_.end(), [&](const auto& holder) {
    return holder.key != first.key || holder.named != first.named;
  });
  const auto same = other - holders_.begin();
  std::rotate(holders_.begin(), holders_.begin() + turn_.number() % same, other);
}

void Lookup::attempt(const KeyClaims::Deepest& holder, Rank rival, std::uint32_t& rounds) {
  Wanted wanted;
  wanted.holder = holder.rank;
  wanted.claimed = claims_.keys()[holder.key].position + 1;
  wanted.from = local_;
  wanted.grid = grid_;
  wanted.own_from = aux_ == 0 ? cover_.size() : window_start(std::max(wanted.claimed, local_ + 1));
  rounds += search_.run(wanted, holder.key, rival);
  if (aux_ != 0) {
    attempt_aux(wanted, rounds);
    return;
  }
  hit_.common_hit = cover_.end_from(local_);
  hit_.full = cover_.fragments(local_, hit_.common_hit);
}

void Lookup::attempt_aux(const Wanted& wanted, std::uint32_t& rounds) {
  // The flag may be that of another path with the same key: windows that end earlier count too.
  AuxSearch aux(cover_, request_, wanted.holder, first_block(), wanted.claimed - 1 + grid_);
  if (aux.read(turn_)) ++rounds;
  AuxWindow window = aux.find(hit_.common_hit);
  if (window.end == 0) return;
  hit_.common_hit = window.end;
  hit_.full = cover_.fragments(local_, window.end);
  if ((request_.mask & kMaskSwa) != 0) {
    hit_.swa_start = window.swa_start;
    hit_.swa_slots = std::move(window.swa_slots);
    hit_.swa_rank = wanted.holder;
  }
  if (window.mamba) hit_.mamba = RemoteHit::Mamba{wanted.holder, *window.mamba};
}

}  // namespace

RemoteHit lookup(PeerSet& peers, const LookupRequest& request) {
  RADIX_CHECK(request.block_size != 0 && request.segment_blocks != 0 &&
                  request.segment_blocks <= kMaxSegmentBlocks,
              request.segment_blocks);
  RemoteHit hit;
  hit.common_hit = request.local_hit;
  if (request.local_hit >= request.hashes.size()) return hit;
  const bool no_swa = (request.mask & kMaskSwa) != 0 && request.swa_window_blocks == 0;
  if (no_swa) return hit;
  LookupTurn turn(peers, request.timeout, hit.figures);
  if (!turn.granted()) return hit;
  Lookup(turn, request, hit).run();
  return hit;
}

}  // namespace radixshmem
