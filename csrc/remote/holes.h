// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What a lookup does not know yet, after it has read what the directory names.
//
// Who has a segment has all of the path before it; so a hole in what was verified is asked of the
// peer whose segment is behind it: that segment's parent is in the hole, or before it, and any
// other one that is in there begins at one of the hole's blocks, or at one before it in the same
// aligned range. The end of the path that a peer claims, or that its last branch count promises, is
// such a hole too, up to the next key: if the peer had that one the directory would name it. Thread
// safety: pure functions.
#pragma once

#include <vector>

#include "remote/path_cover.h"

namespace radixshmem {

// Table lines are asked for in this many aligned ranges at most.
inline constexpr std::uint32_t kMaxHoleRanges = 8;

struct Wanted {
  Rank holder = kNoRank;  // of whom the path is wanted
  Position claimed = 0;   // blocks [0, claimed) it says to have
  Position from = 0;      // blocks from here on are wanted of anybody
  Position own_from = 0;  // and from here on of the holder itself; the path's size: nowhere
  std::uint32_t grid = 1;
};

struct Hole {
  Position from = 0;
  Position to = 0;
  Rank owner = kNoRank;
  SegmentId parent = 0;  // of the owner's segment behind the hole; 0 = none
};

[[nodiscard]] std::vector<Hole> find_holes(const PathCover& cover, const Wanted& wanted);

// A place where a segment may begin.
struct HolePlace {
  Position position = 0;
  Rank owner = kNoRank;
};
// Returns: where to look in the owners' tables, by position, in at most kMaxHoleRanges ranges.
[[nodiscard]] std::vector<HolePlace> places_in(const PathCover& cover,
                                               const std::vector<Hole>& holes);

}  // namespace radixshmem
