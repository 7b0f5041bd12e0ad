// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "remote/holes.h"

#include <algorithm>

namespace radixshmem {
namespace {

Position next_key(Position position, std::uint32_t grid) noexcept {
  return (position / grid + 1) * grid;
}

// The hole behind all that was verified; an empty one when nothing can be there.
Hole last_hole(const PathCover& cover, const Wanted& wanted, Position end,
               const PathCover::Piece* deepest) {
  const std::uint32_t s = cover.segment_blocks();
  if (end < wanted.claimed) {
    // The deepest segment was another one. Its place is looked for, unless everything of the holder
    // is: then so much has changed there that others are better asked.
    const bool one_range = end / s == (wanted.claimed - 1) / s;
    if (!one_range && !cover.any_of(wanted.holder)) return {};
    return {end, std::min(cover.size(), next_key(wanted.claimed - 1, wanted.grid)), wanted.holder,
            0};
  }
  // On a key position nobody is named for there is nothing.
  if (deepest == nullptr || deepest->end != end || !deepest->goes_on) return {};
  if (end % wanted.grid == 0) return {};
  return {end, std::min(cover.size(), next_key(end, wanted.grid)), deepest->rank, 0};
}

}  // namespace

std::vector<Hole> find_holes(const PathCover& cover, const Wanted& wanted) {
  const bool own = wanted.own_from < cover.size();
  const PathCover::Piece* deepest = cover.deepest(own ? wanted.holder : kNoRank);
  const Position begin = std::min(wanted.from, wanted.own_from);
  const Position end = std::max(deepest != nullptr ? deepest->end : begin, begin);
  // Returns: up to where the path is known from `p` on; `p` when it is not.
  const auto known_to = [&](Position p) {
    const PathCover::Piece* piece = cover.at(p);
    if (p >= wanted.own_from) return cover.held_by(p, wanted.holder) ? piece->end : p;
    if (p < wanted.from) return std::min(wanted.from, wanted.own_from);
    return piece != nullptr ? std::min(piece->end, wanted.own_from) : p;
  };
  std::vector<Hole> holes;
  for (Position p = begin; p < end;) {
    const Position from = p;
    while (p < end && known_to(p) == p) ++p;
    const PathCover::Piece* behind = cover.at(p);
    if (p > from && p < end && behind != nullptr) {
      holes.push_back({from, p, behind->rank, behind->parent});
    }
    while (p < end && known_to(p) != p) p = known_to(p);
  }
  const Hole last = last_hole(cover, wanted, end, deepest);
  if (last.from < last.to) holes.push_back(last);
  return holes;
}

std::vector<HolePlace> places_in(const PathCover& cover, const std::vector<Hole>& holes) {
  const std::uint32_t s = cover.segment_blocks();
  std::vector<HolePlace> places;
  std::uint32_t ranges = 0;
  for (const Hole& hole : holes) {
    for (Position range = hole.from / s * s; range < hole.to; range += s) {
      if (++ranges > kMaxHoleRanges) return places;
      Position p = std::max(range, hole.from);
      while (p > range && !cover.held_by(p - 1, hole.owner)) --p;
      for (; p < std::min(range + s, hole.to); ++p) places.push_back({p, hole.owner});
    }
  }
  return places;
}

}  // namespace radixshmem
