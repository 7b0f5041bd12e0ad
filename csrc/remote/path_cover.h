// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Which blocks of a path were verified at which peer, while a lookup reads segment after segment.
//
// A piece is what one segment of one peer has of the path. Where pieces of several peers overlap,
// that of the preferred one is kept, else the first.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "remote/lookup.h"
#include "remote/segment_image.h"

namespace radixshmem {

class PathCover final {
 public:
  struct Piece {
    Rank rank = kNoRank;
    SegmentId segment = 0;
    SegmentId parent = 0;
    SideId side = 0;
    Position start = 0;     // of the segment
    Position end = 0;       // blocks [start, end) are those of the path
    bool goes_on = false;   // children begin at `end`
    std::size_t slots = 0;  // of the block at `start`, in slots()
  };

  // Blocks before `base` are of no interest.
  PathCover(std::span<const BlockHash> path, Position base, std::uint32_t segment_blocks);

  void prefer(Rank rank) noexcept { preferred_ = rank; }
  // Verifies the bytes of a segment. Returns: false when it holds nothing of the path.
  bool add(Rank rank, SegmentId segment, std::span<const std::byte> bytes);

  [[nodiscard]] std::span<const BlockHash> path() const noexcept { return path_; }
  [[nodiscard]] std::uint32_t segment_blocks() const noexcept { return classes_.segment_blocks; }
  [[nodiscard]] const ClassTable& classes() const noexcept { return classes_; }
  [[nodiscard]] Position base() const noexcept { return base_; }
  [[nodiscard]] Position size() const noexcept { return static_cast<Position>(path_.size()); }

  // Returns: the piece that holds the block; nullptr when none does.
  [[nodiscard]] const Piece* at(Position position) const noexcept {
    if (position < base_ || position >= size()) return nullptr;
    const std::uint32_t piece = piece_of_[position - base_];
    return piece == 0 ? nullptr : &pieces_[piece - 1];
  }
  [[nodiscard]] bool held_by(Position position, Rank rank) const noexcept {
    const Piece* piece = at(position);
    return piece != nullptr && piece->rank == rank;
  }
  // Returns: the end of what is verified from `from` on without a gap.
  [[nodiscard]] Position end_from(Position from) const noexcept;
  // Returns: the piece, of `rank` unless that is kNoRank, that ends last, and of these one that
  // goes on; nullptr without any.
  [[nodiscard]] const Piece* deepest(Rank rank) const noexcept;
  [[nodiscard]] std::span<const Piece> pieces() const noexcept { return pieces_; }
  [[nodiscard]] bool any_of(Rank rank) const noexcept;
  // Returns: [from, to) in runs of one rank. Requires: it is verified without a gap.
  [[nodiscard]] std::vector<RemoteFragment> fragments(Position from, Position to) const;

 private:
  std::span<const BlockHash> path_;
  Position base_;
  ClassTable classes_;
  Rank preferred_ = kNoRank;
  std::vector<Piece> pieces_;
  std::vector<std::int32_t> slots_;
  std::vector<std::uint32_t> piece_of_;  // by position - base_; + 1
};

}  // namespace radixshmem
