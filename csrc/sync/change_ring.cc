// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "sync/change_ring.h"

namespace radixshmem {

void ChangeRing::publish(const Change& change) noexcept {
  Batch batch(this, 1);
  batch.add(change);
  batch.finish();
}

void ChangeRing::demand_resync() noexcept {
  root_->overflow.fetch_add(1, std::memory_order_seq_cst);
}

ChangeRing::Cursor ChangeRing::at_head() const noexcept {
  // Overflow first: one raised after this load is seen by the next drain.
  const std::uint64_t seen = overflow();
  return {head(), seen};
}

std::size_t ChangeRing::drain(Cursor& cursor, std::span<Change> out, bool& resync) const noexcept {
  const std::uint64_t begin = cursor.next;
  const std::uint64_t end = head();
  const auto give_up = [&] {
    cursor = at_head();
    resync = true;
    return std::size_t{0};
  };
  const auto lapped = [&](std::uint64_t written) { return written - begin > mask_ + 1; };
  if (overflow() != cursor.overflow || lapped(end)) return give_up();
  std::size_t count = 0;
  while (cursor.next < end && count < out.size()) {
    const RingEntry& entry = entries_[cursor.next & mask_];
    const std::uint64_t hash = entry.hash.load(std::memory_order_acquire);
    const std::uint64_t parent = entry.parent.load(std::memory_order_acquire);
    const std::uint64_t what = entry.what.load(std::memory_order_acquire);
    const std::uint64_t segment = entry.segment.load(std::memory_order_acquire);
    out[count++] = {static_cast<ChangeKind>(what & 0xff),
                    static_cast<Component>((what >> 8) & 0xff),
                    static_cast<Position>(what >> 32),
                    hash,
                    parent,
                    static_cast<SegmentId>(segment)};
    ++cursor.next;
  }
  if (lapped(root_->reserved.load(std::memory_order_relaxed))) return give_up();
  return count;
}

}  // namespace radixshmem
