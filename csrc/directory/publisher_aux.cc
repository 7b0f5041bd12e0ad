// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Aux bits of keys.
//
// The slots of a window come from its end to its begin, and some may have been there before: a
// granule where a window lacks a block waits for a slot in that block's segment. Bits are added as
// windows are seen; one is cleared when a slot of its granule's own segment goes and no window is
// left along that path. Where that is wrong, a republication in a new generation mends it.
#include <algorithm>

#include "directory/publisher.h"

namespace radixshmem {
namespace {

constexpr std::size_t kMaxWaiting = 65536;

}  // namespace

void Publisher::apply_aux(const Change& change) {
  const std::uint32_t g = reader_.grid();
  const Position begin = change.position - change.position % g;
  if (change.kind == ChangeKind::kStored) {
    look_at({change.segment, begin}, 0);
    const auto at = waiting_.find(change.segment);
    if (at == waiting_.end()) return;
    for (const Granule& granule : at->second) look_at(granule, 0);
    waiting_granules_ -= at->second.size();
    waiting_.erase(at);
    return;
  }
  const bool swa = change.component == Component::kSwa;
  look_at({change.segment, begin}, swa ? GranuleAux::kSwa : GranuleAux::kMamba);
  if (!swa || !tree_.arena().valid(change.segment)) return;
  // Windows that the slot was part of end at most W - 1 blocks later.
  const Segment segment = tree_.arena().segment(change.segment);
  const Position end = std::min(change.position + tree_.plan().swa_window_blocks,
                                segment.start() + segment.head().count);
  for (Position p = begin + g; p < end; p += g) {
    look_at({change.segment, p}, GranuleAux::kSwa);
  }
}

void Publisher::look_at(Granule granule, std::uint32_t clear) {
  granules_[granule.id()] |= clear;
}

void Publisher::wait_for_window(Granule granule, SegmentId lacking) {
  if (waiting_granules_ >= kMaxWaiting) {
    waiting_.clear();
    waiting_granules_ = 0;
  }
  std::vector<Granule>& all = waiting_[lacking];
  const bool known =
      std::ranges::any_of(all, [&](const Granule& other) { return other.id() == granule.id(); });
  if (known) return;
  all.push_back(granule);
  ++waiting_granules_;
}

void Publisher::publish_granules() {
  for (const auto& [id, clear] : granules_) {
    const Granule granule{static_cast<SegmentId>(id >> 32), static_cast<Position>(id)};
    const auto facts = reader_.read_above(granule.leaf, granule.position);
    if (!facts) continue;
    const GranuleAux aux = reader_.aux(granule.leaf, granule.position);
    if (aux.lacking != 0) wait_for_window(granule, aux.lacking);
    const std::uint32_t gone = clear & ~aux.bits;
    if (aux.bits == 0 && gone == 0) continue;
    publish(*facts, aux.bits | gone << kAuxClearShift, outbox_.keepers_of(facts->key));
  }
  granules_.clear();
}

}  // namespace radixshmem
