// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// One round of reads of peers' trees: segments, which are verified into a PathCover, and lines of
// their tables.
//
// No segment is read twice.
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "directory/directory_words.h"
#include "remote/lookup_turn.h"
#include "remote/path_cover.h"

namespace radixshmem {

class TreeReads final {
 public:
  TreeReads(LookupTurn& turn, PathCover& cover, LookupFigures& figures) noexcept
      : turn_(turn), cover_(cover), figures_(figures) {}

  // Asks for a segment; class 0: as much as the largest has.
  void want(Rank rank, SegmentRef segment);
  // Asks for the table lines of the block at `position`.
  void probe(Rank rank, Position position);
  // Returns: whether a round was made.
  bool run();

  // What a table line names.
  struct Found {
    Rank rank = kNoRank;
    Position position = 0;
    SegmentId segment = 0;
  };
  // Of the last round, by position.
  [[nodiscard]] std::span<const Found> found() const noexcept { return found_; }

 private:
  struct Want {
    Rank rank = kNoRank;
    SegmentRef segment;
    [[nodiscard]] std::pair<Rank, SegmentId> key() const noexcept { return {rank, segment.id}; }
  };
  struct Probe {
    Rank rank = kNoRank;
    Position position = 0;
  };

  void forget_known();
  // Appends the reads; `bytes_` is where they go.
  void plan_segments(std::vector<LookupTurn::Read>& reads);
  void plan_lines(std::vector<LookupTurn::Read>& reads);
  void look_into_line(const Probe& probe, std::span<const std::byte> line);

  LookupTurn& turn_;
  PathCover& cover_;
  LookupFigures& figures_;
  std::vector<Want> wants_;
  std::vector<Probe> probes_;
  std::vector<std::pair<Rank, SegmentId>> known_;  // sorted
  std::vector<std::byte> bytes_;
  std::vector<Found> found_;
};

}  // namespace radixshmem
