// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "remote/path_search.h"

#include <algorithm>

namespace radixshmem {

std::uint32_t PathSearch::run(const Wanted& wanted, std::size_t key, Rank rival) {
  cover_.prefer(wanted.holder);
  want_named(wanted, key);
  if (rival != kNoRank) reads_.want(rival, claims_.of(rival, key)->segment);
  std::uint32_t rounds = reads_.run() ? 1 : 0;
  want_behind(wanted);
  rounds += reads_.run() ? 1 : 0;
  want_found(wanted);
  rounds += reads_.run() ? 1 : 0;
  return rounds;
}

void PathSearch::want_named(const Wanted& wanted, std::size_t key) {
  const auto want = [&](std::size_t k) {
    const DirectoryEntry* entry = claims_.of(wanted.holder, k);
    if (entry == nullptr) return false;
    reads_.want(wanted.holder, entry->segment);
    const bool earlier = claims_.keys()[k].position > std::min(wanted.from, wanted.own_from);
    if (earlier) reads_.want(wanted.holder, entry->parent);
    return true;
  };
  // SWA and MAMBA: the granule of the key may end in a segment that the next key names.
  if (wanted.own_from < cover_.size() && key + 1 < claims_.keys().size()) want(key + 1);
  bool named = want(key);
  Rank last = wanted.holder;
  for (std::size_t k = key; k-- > 0;) {
    const bool same_range = claims_.keys()[k].position / cover_.segment_blocks() ==
                            claims_.keys()[k + 1].position / cover_.segment_blocks();
    const bool deeper_named = named && same_range;
    named = want(k);
    // What the holder is named for at the next key most likely covers this one.
    if (!named && !deeper_named) want_of_others(wanted, k, last);
  }
}

void PathSearch::want_of_others(const Wanted& wanted, std::size_t key, Rank& last) {
  // Where the path must be the holder's own, others are of no use.
  if (claims_.keys()[key].position >= wanted.own_from) return;
  const auto holders = claims_.holders(key);
  if (holders.empty()) return;
  const DirectoryEntry* entry = claims_.of(last, key);
  if (entry == nullptr) entry = &holders.front();
  last = entry->rank;
  reads_.want(entry->rank, entry->segment);
}

void PathSearch::want_behind(const Wanted& wanted) {
  const std::vector<Hole> holes = find_holes(cover_, wanted);
  for (const Hole& hole : holes) reads_.want(hole.owner, {hole.parent, 0});
  for (const HolePlace& place : places_in(cover_, holes)) {
    reads_.probe(place.owner, place.position);
  }
}

void PathSearch::want_found(const Wanted& wanted) {
  if (reads_.found().empty()) return;
  // Only where parents have not closed the holes.
  const std::vector<HolePlace> places = places_in(cover_, find_holes(cover_, wanted));
  for (const TreeReads::Found& found : reads_.found()) {
    const bool open = std::any_of(places.begin(), places.end(), [&](const HolePlace& place) {
      return place.position == found.position && place.owner == found.rank;
    });
    if (open) reads_.want(found.rank, {found.segment, 0});
  }
}

}  // namespace radixshmem
