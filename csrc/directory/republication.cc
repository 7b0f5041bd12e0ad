// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// Publishing what is in the tree already: a scan of the arena beside its writers. What is stored
// behind the scan comes through the ring, what is removed is retracted through it.
#include <algorithm>
#include <utility>

#include "directory/publisher.h"

namespace radixshmem {
namespace {

constexpr std::uint32_t kSegmentsPerSlice = 1u << 16;

}  // namespace

void Publisher::set_maps(ShardMaps maps, std::uint32_t rate, Time now, Time delay) {
  const ShardMaps before = outbox_.set_maps(std::move(maps));
  const std::vector<Keepers> undone = std::exchange(moved_, std::vector<Keepers>(kShards));
  bool any = false;
  bool added = false;
  for (std::uint32_t s = 0; s < kShards; ++s) {
    const auto shard = static_cast<std::uint16_t>(s);
    const Keepers now_kept = outbox_.keepers_of(shard);
    const Keepers kept = keepers_in(before, shard);
    for (const std::uint16_t keeper : now_kept.all()) {
      const bool is_new = !kept.has(keeper);
      added = added || is_new;
      if (is_new || (!undone.empty() && undone[s].has(keeper))) moved_[s].add(keeper);
    }
    any = any || moved_[s].count != 0;
  }
  if (!any) moved_.clear();
  if (!any && scan_ && !scan_->everything) scan_.reset();
  if (added) begin_scan(/*everything=*/false, rate, /*urgent=*/true, now + delay);
}

void Publisher::resend(std::uint16_t keeper, std::uint32_t rate, Time now) {
  if (moved_.empty()) moved_.resize(kShards);
  for (std::uint32_t s = 0; s < kShards; ++s) {
    if (outbox_.keepers_of(static_cast<std::uint16_t>(s)).has(keeper)) moved_[s].add(keeper);
  }
  begin_scan(/*everything=*/false, rate, /*urgent=*/true, now);
}

void Publisher::republish_all(std::uint32_t rate, Time now) {
  if (scan_ && scan_->everything) return;
  begin_scan(/*everything=*/true, rate, /*urgent=*/false, now);
}

void Publisher::resync(Time now) {
  ++counters_.resyncs;
  forget_pending();
  begin_scan(/*everything=*/true, 0, /*urgent=*/true, now);
}

// A scan that is under way begins again, and then does what both were for.
void Publisher::begin_scan(bool everything, std::uint32_t rate, bool urgent, Time begin) {
  if (stopped_) return;
  Scan scan;
  scan.everything = everything || (scan_ && scan_->everything);
  scan.urgent = urgent || (scan_ && scan_->urgent);
  scan.rate =
      scan_ && (scan_->rate == 0 || rate == 0) ? 0 : std::max(rate, scan_ ? scan_->rate : 0);
  scan.begin = begin;
  scan_ = scan;
  if (everything) outbox_.begin_generation();
}

bool Publisher::scan(std::size_t budget, bool to_the_end, Time now) {
  if (!scan_) return false;
  const PageArena& arena = tree_.arena();
  const ClassTable& classes = arena.classes();
  const auto pages = static_cast<PageId>(arena.units() / kPageUnits);
  std::uint64_t allowed = ~std::uint64_t{0};
  if (!to_the_end) {
    if (now < scan_->begin) return false;
    // What nobody waits for goes out once a second: more keys in a batch.
    const Time step = scan_->urgent ? 1 : 1000;
    const Time passed = (now - scan_->begin) / step * step;
    if (scan_->rate != 0) allowed = passed * scan_->rate / 1000;
  }
  for (std::uint32_t seen = 0; scan_->page < pages; ++seen) {
    if (!to_the_end && (outbox_.keys() >= budget || seen >= kSegmentsPerSlice)) return true;
    if (scan_->keys >= allowed) return false;
    const std::uint32_t c = arena.class_of(scan_->page * kPageUnits);
    if (c == 0 || scan_->index >= classes.per_page[c]) {
      ++scan_->page;
      scan_->index = 0;
      continue;
    }
    scan_segment(scan_->page * kPageUnits + scan_->index * classes.units[c]);
    ++scan_->index;
  }
  end_scan();
  return false;
}

void Publisher::scan_segment(SegmentId id) {
  const Segment segment = tree_.arena().segment(id);
  const SegmentHead head = segment.head();
  if (!head.live()) return;
  const std::uint32_t g = reader_.grid();
  const Position start = segment.start();
  const Position end = start + std::min(head.count, segment.capacity());
  const bool aux = reader_.has_aux() && segment->side.load(std::memory_order_relaxed) != 0;
  // A granule that began above: its key is of another segment, its window may end in this one.
  if (aux && start % g != 0) look_at({id, start - start % g}, 0);
  for (Position p = (start + g - 1) / g * g; p < end; p += g) {
    const auto facts = reader_.read(id, p);
    if (!facts) continue;
    const Keepers to = scan_->everything ? outbox_.keepers_of(facts->key)
                                         : moved_[place_of(facts->key, identity().digest).shard];
    if (to.count == 0) continue;
    ++scan_->keys;
    ++counters_.republished;
    const GranuleAux found = aux ? reader_.aux(id, p) : GranuleAux{};
    if (found.lacking != 0) wait_for_window({id, p}, found.lacking);
    publish(*facts, found.bits, to);
  }
}

void Publisher::end_scan() {
  publish_granules();
  if (scan_->everything) outbox_.sweep();
  scan_.reset();
  moved_.clear();
}

}  // namespace radixshmem
