// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "remote/path_cover.h"

#include <algorithm>

namespace radixshmem {

PathCover::PathCover(std::span<const BlockHash> path, Position base, std::uint32_t segment_blocks)
    : path_(path),
      base_(base),
      classes_(ClassTable::for_segment_blocks(segment_blocks)),
      piece_of_(path.size() - base) {
  slots_.reserve(path.size() - base);
}

bool PathCover::add(Rank rank, SegmentId segment, std::span<const std::byte> bytes) {
  const auto image = SegmentImage::of(bytes, classes_);
  if (!image) return false;
  const std::uint32_t matched = image->matched(path_);
  if (matched == 0) return false;
  Piece piece;
  piece.rank = rank;
  piece.segment = segment;
  piece.parent = image->parent();
  piece.side = image->side();
  piece.start = image->start();
  piece.end = piece.start + matched;
  piece.goes_on = image->goes_on(matched);
  piece.slots = slots_.size();
  if (!image->append_slots(matched, slots_)) return false;
  pieces_.push_back(piece);
  const auto id = static_cast<std::uint32_t>(pieces_.size());
  for (Position p = std::max(piece.start, base_); p < piece.end; ++p) {
    std::uint32_t& held = piece_of_[p - base_];
    const bool better = rank == preferred_ && held != 0 && pieces_[held - 1].rank != rank;
    if (held == 0 || better) held = id;
  }
  return true;
}

Position PathCover::end_from(Position from) const noexcept {
  // All that a piece holds is verified, by it or by another one.
  for (const Piece* piece = at(from); piece != nullptr; piece = at(from)) from = piece->end;
  return from;
}

const PathCover::Piece* PathCover::deepest(Rank rank) const noexcept {
  const Piece* best = nullptr;
  for (const Piece& piece : pieces_) {
    if (rank != kNoRank && piece.rank != rank) continue;
    const bool deeper = best == nullptr || piece.end > best->end ||
                        (piece.end == best->end && piece.goes_on && !best->goes_on);
    if (deeper) best = &piece;
  }
  return best;
}

bool PathCover::any_of(Rank rank) const noexcept {
  return std::any_of(pieces_.begin(), pieces_.end(),
                     [&](const Piece& piece) { return piece.rank == rank; });
}

std::vector<RemoteFragment> PathCover::fragments(Position from, Position to) const {
  std::vector<RemoteFragment> out;
  while (from < to) {
    const Piece& piece = *at(from);
    const Position end = std::min(to, piece.end);
    Position p = from;
    if (out.empty() || out.back().rank != piece.rank) out.push_back({piece.rank, from, {}});
    while (p < end && at(p) == &piece) ++p;
    const auto run = std::span(slots_).subspan(piece.slots + (from - piece.start), p - from);
    out.back().slots.insert(out.back().slots.end(), run.begin(), run.end());
    from = p;
  }
  return out;
}

}  // namespace radixshmem
