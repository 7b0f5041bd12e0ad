// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "remote/key_claims.h"

#include <algorithm>

#include "base/numbers.h"

namespace radixshmem {
namespace {

// Returns: who can be asked for this shard.
const PeerInfo* shard_holder(LookupTurn& turn, std::uint16_t shard) {
  for (const Rank rank : turn.shard_ranks(shard)) {
    if (rank == kNoShardRank) continue;
    const PeerInfo* peer = turn.readable(rank);
    if (peer != nullptr && !peer->warming && peer->directory_lines != 0) return peer;
  }
  return nullptr;
}

}  // namespace

void KeyClaims::read(LookupTurn& turn, const LookupRequest& request, Position from,
                     std::uint32_t grid, LookupFigures& figures) {
  std::vector<Position> positions;
  for (std::uint64_t p = round_up(from, grid); p < request.hashes.size(); p += grid) {
    positions.push_back(static_cast<Position>(p));
  }
  const std::size_t stride = (positions.size() + kMaxFirstKeys - 1) / kMaxFirstKeys;
  if (stride <= 1) {
    read_some(turn, request, positions, figures);
    return;
  }
  std::vector<Position> some;
  for (std::size_t i = 0; i < positions.size(); i += stride) some.push_back(positions[i]);
  read_some(turn, request, some, figures);
  const auto named =
      std::find_if(keys_.rbegin(), keys_.rend(), [](const Key& key) { return key.count != 0; });
  if (named == keys_.rend()) return;
  // The rest, up to the next one that nobody is named for.
  const std::size_t deepest = (named->position - positions.front()) / grid;
  const std::size_t end = std::min(deepest + stride, positions.size());
  some.clear();
  for (std::size_t i = request.directory_only ? deepest : 0; i < end; ++i) {
    if (i % stride != 0) some.push_back(positions[i]);
  }
  read_some(turn, request, some, figures);
  std::sort(keys_.begin(), keys_.end(),
            [](const Key& a, const Key& b) { return a.position < b.position; });
}

void KeyClaims::read_some(LookupTurn& turn, const LookupRequest& request,
                          std::span<const Position> positions, LookupFigures& figures) {
  struct Asked {
    Position position = 0;
    std::uint32_t tag = 0;
  };
  std::vector<Asked> asked;
  std::vector<LookupTurn::Read> reads;
  std::vector<DirectoryLine> lines(2 * positions.size());
  asked.reserve(positions.size());
  reads.reserve(2 * positions.size());
  for (const Position position : positions) {
    const KeyPlace place = place_of(request.hashes[position], turn.own().digest);
    const PeerInfo* peer = shard_holder(turn, place.shard);
    if (peer == nullptr) continue;
    for (std::uint32_t i = 0; i < 2; ++i) {
      auto* to = reinterpret_cast<std::byte*>(&lines[2 * asked.size() + i]);
      const std::uint64_t line = place.line(i, peer->directory_lines);
      reads.push_back({peer->rank,
                       {PeerRegion::kIndex, peer->directory_offset + line * sizeof(DirectoryLine),
                        sizeof(DirectoryLine), to}});
    }
    asked.push_back({position, place.tag});
  }
  if (reads.empty() || !turn.run(reads)) return;
  ++figures.rounds;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    // A line that was not read names nobody, or somebody who will be read.
    const std::span<const DirectoryLine, 2> both(&lines[2 * i], 2);
    keep(turn, asked[i].position, holders_in(both, asked[i].tag), figures);
  }
}

void KeyClaims::keep(LookupTurn& turn, Position position, const Holders& holders,
                     LookupFigures& figures) {
  Key key{position, static_cast<std::uint32_t>(entries_.size()), 0};
  for (const DirectoryEntry& entry : holders.all()) {
    if (entry.rank == turn.own().rank) continue;
    const PeerInfo* peer = turn.live(entry.rank);
    if (peer == nullptr || static_cast<std::uint16_t>(peer->incarnation) != entry.incarnation) {
      ++figures.stale_entries;
      continue;
    }
    if (turn.readable(entry.rank) == nullptr) continue;
    entries_.push_back(entry);
    ++key.count;
  }
  keys_.push_back(key);
}

const DirectoryEntry* KeyClaims::of(Rank rank, std::size_t key) const noexcept {
  for (const DirectoryEntry& entry : holders(key)) {
    if (entry.rank == rank) return &entry;
  }
  return nullptr;
}

std::vector<KeyClaims::Deepest> KeyClaims::deepest(std::uint32_t aux) const {
  std::vector<Deepest> out;
  for (std::size_t key = keys_.size(); key-- > 0;) {
    for (const DirectoryEntry& entry : holders(key)) {
      const auto known = std::find_if(out.begin(), out.end(),
                                      [&](const Deepest& d) { return d.rank == entry.rank; });
      if (known != out.end()) {
        ++known->named;
      } else if ((entry.aux & aux) == aux) {
        out.push_back({entry.rank, key, 1});
      }
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const Deepest& a, const Deepest& b) {
    return a.key != b.key ? a.key > b.key : a.named > b.named;
  });
  return out;
}

}  // namespace radixshmem
