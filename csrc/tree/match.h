// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What a reader remembers of a match, so that it can pin it, validate it and go on from it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"

namespace radixshmem {

// One segment of a matched path.
struct MatchStep {
  SegmentId segment = 0;
  SideId side = 0;
  std::uint64_t version = 0;
  Position start = 0;       // of the segment
  std::uint32_t count = 0;  // its entries [0, count) belong to the path
};

struct Match {
  Position end = 0;  // blocks [0, end) of the path are in the tree
  std::uint64_t arena_sequence = 0;
  std::uint32_t restarts = 0;
  bool gave_up = false;          // too many restarts: reported as a miss
  std::vector<MatchStep> steps;  // root first (from the cursor on, if there was one)
};

// One aux word that an answer rests on.
struct AuxRead {
  std::uint32_t step = 0;
  std::uint32_t pool = 0;
  std::uint32_t entry = 0;
  std::uint64_t word = 0;
};

// The SWA and MAMBA slots of an answer: a window, or what there is from some block on.
struct Window {
  Position swa_start = 0;
  std::vector<std::int32_t> swa_slots;
  std::optional<SlotId> mamba;
  std::vector<std::int32_t> aux_slots;  // of Tree::aux_slots()
  std::vector<AuxRead> reads;
  std::uint32_t first_step = 0;  // steps from here on hold what was read and need a pin each
};

// Where a match ended: entries [0, depth) of `segment`, which then had `version`.
struct CursorPoint {
  SegmentId segment = 0;
  std::uint32_t depth = 0;
  std::uint64_t version = 0;
  Position position = 0;          // blocks before the end of those entries
  std::uint64_t incarnation = 0;  // of the index it points into: segments of another one are others
};

}  // namespace radixshmem
