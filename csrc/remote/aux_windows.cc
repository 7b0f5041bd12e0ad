// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "remote/aux_windows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "layout/words.h"
#include "tree/side_pool.h"

namespace radixshmem {
namespace {

template <typename Word>
Word word_at(std::span<const std::byte> bytes, std::size_t offset) noexcept {
  Word word;
  std::memcpy(&word, bytes.data() + offset, sizeof word);
  return word;
}

}  // namespace

AuxSearch::AuxSearch(const PathCover& cover, const LookupRequest& request, Rank holder,
                     Position first, Position last)
    : cover_(cover),
      request_(request),
      holder_(holder),
      first_(first),
      last_(std::min(last, cover.size())),
      swa_(last_ - first_),
      mamba_(last_ - first_) {}

bool AuxSearch::read(LookupTurn& turn) {
  const PeerInfo* peer = turn.readable(holder_);
  if (peer == nullptr || peer->side_bytes < kSideHeaderBytes) return false;
  std::vector<const PathCover::Piece*> pieces;
  for (const PathCover::Piece& piece : cover_.pieces()) {
    const bool useful = piece.rank == holder_ && piece.end > first_ && piece.start < last_;
    if (useful && piece.side != 0 && piece.side < peer->side_blocks) pieces.push_back(&piece);
  }
  std::vector<std::byte> bytes(pieces.size() * std::size_t{peer->side_bytes});
  std::vector<LookupTurn::Read> reads;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::uint64_t offset =
        peer->side_offset + std::uint64_t{pieces[i]->side} * peer->side_bytes;
    std::byte* to = bytes.data() + i * std::size_t{peer->side_bytes};
    reads.push_back({holder_, {PeerRegion::kIndex, offset, peer->side_bytes, to}});
  }
  if (reads.empty() || !turn.run(reads)) return false;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (reads[i].done) take(*pieces[i], {reads[i].op.to, reads[i].op.length});
  }
  return true;
}

void AuxSearch::take(const PathCover::Piece& piece, std::span<const std::byte> block) {
  if (word_at<SegmentId>(block, offsetof(SideHeader, segment)) != piece.segment) return;
  const std::size_t s = cover_.segment_blocks();
  const auto take_pool = [&](std::size_t pool, std::vector<Word>& out) {
    const std::size_t words = kSideHeaderBytes + pool * s * sizeof(std::uint64_t);
    if (words + s * sizeof(std::uint64_t) > block.size()) return;
    for (Position p = std::max(piece.start, first_); p < std::min(piece.end, last_); ++p) {
      const auto aux = word_at<std::uint64_t>(block, words + std::size_t{8} * (p - piece.start));
      if (!AuxWord::present(aux) || AuxWord::slot(aux) > kMaxPoolSlots) continue;
      out[p - first_] = AuxWord::slot(aux);
    }
  };
  if (request_.swa_window_blocks != 0) take_pool(0, swa_);
  take_pool(request_.swa_window_blocks != 0 ? 1 : 0, mamba_);
}

AuxWindow AuxSearch::find(Position above) const {
  const bool want_swa = (request_.mask & kMaskSwa) != 0;
  const bool want_mamba = (request_.mask & kMaskMamba) != 0;
  AuxWindow out;
  for (Position n = std::min(cover_.end_from(above), last_); n > above; --n) {
    if (want_mamba && !word(mamba_, n - 1)) continue;
    Position start = n;
    if (want_swa) {
      const Position least = n - std::min(request_.swa_window_blocks, n);
      while (start > least && word(swa_, start - 1)) --start;
      if (start > least) {
        n = start;  // no window holds block start - 1
        continue;
      }
    }
    out.end = n;
    out.swa_start = start;
    for (Position p = start; p < n; ++p) {
      out.swa_slots.push_back(static_cast<std::int32_t>(*word(swa_, p)));
    }
    if (want_mamba) out.mamba = word(mamba_, n - 1);
    return out;
  }
  return out;
}

}  // namespace radixshmem
