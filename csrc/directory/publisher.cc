// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "directory/publisher.h"

#include <algorithm>
#include <array>
#include <limits>

namespace radixshmem {
namespace {

constexpr std::size_t kNoBudget = std::numeric_limits<std::size_t>::max();
// An event precedes the commit of its block; a block that is not there so long after will not come.
constexpr std::uint64_t kRetryMs = 20;
constexpr std::uint64_t kGiveUpMs = 2000;
constexpr std::uint32_t kMaxSegmentsOfRange = 64;

}  // namespace

Publisher::Publisher(const Tree& tree, const Publishing& who, const PublisherOptions& options)
    : tree_(tree),
      reader_(tree),
      options_(options),
      outbox_(who),
      cursor_(tree.ring().at_head()),
      pending_(options.idle_ms, options.max_pending) {
  RADIX_CHECK(options.chunk_blocks > 0, options.chunk_blocks);
}

std::vector<AddressedBatch> Publisher::collect(Time now, std::size_t budget) {
  more_ = false;
  if (!stopped_) {
    more_ = read_ring(budget, now);
    pending_.take(now, /*all=*/false,
                  [&](SegmentId segment, const PendingKey& key) { release(segment, key, now); });
    publish_granules();
    more_ = scan(budget, /*to_the_end=*/false, now) || more_;
  }
  return take();
}

std::vector<AddressedBatch> Publisher::flush(Time now) {
  more_ = false;
  if (!stopped_) {
    (void)read_ring(kNoBudget, now);
    pending_.take(now, /*all=*/true,
                  [&](SegmentId segment, const PendingKey& key) { release(segment, key, now); });
    publish_granules();
    if (scan_ && scan_->urgent) (void)scan(kNoBudget, /*to_the_end=*/true, now);
  }
  return take();
}

std::vector<AddressedBatch> Publisher::take() {
  std::vector<AddressedBatch> out = outbox_.take();
  counters_.batches += out.size();
  for (const AddressedBatch& batch : out) counters_.bytes += batch.bytes.size();
  return out;
}

// Returns: whether there is more.
bool Publisher::read_ring(std::size_t budget, Time now) {
  std::array<Change, 256> changes;
  // Not beyond what is there now: a flush must not chase the writers.
  const std::uint64_t end = tree_.ring().head();
  while (cursor_.next < end) {
    if (outbox_.keys() + pending_.ready() >= budget) return true;
    bool lost = false;
    const std::size_t got = tree_.ring().drain(cursor_, changes, lost);
    counters_.events += got;
    if (lost) resync(now);
    if (got == 0) return false;
    for (const Change& change : std::span(changes).first(got)) apply(change, now);
  }
  if (tree_.ring().overflow() != cursor_.overflow) {
    cursor_ = tree_.ring().at_head();
    resync(now);
  }
  return false;
}

void Publisher::apply(const Change& change, Time now) {
  if (change.kind == ChangeKind::kCleared) {
    forget_pending();
    outbox_.drop_everything();
  } else if (change.component == Component::kFull) {
    apply_full(change, now);
  } else {
    apply_aux(change);
  }
}

void Publisher::apply_full(const Change& change, Time now) {
  const bool is_key = change.position % reader_.grid() == 0;
  if (change.kind == ChangeKind::kRemoved) {
    if (!is_key) return;
    pending_.remove(change.segment, change.hash);
    outbox_.retract(change.hash);
    ++counters_.retracted;
    return;
  }
  if (is_key) {
    pending_.add(change.segment, {change.hash, change.position, now}, now);
  } else {
    pending_.touch(change.segment, now);
  }
  const Position next = change.position + 1;
  if (next % options_.chunk_blocks == 0) {
    complete_chunk(change.segment, next - options_.chunk_blocks);
  }
}

void Publisher::complete_chunk(SegmentId last, Position begin) {
  // What is read here may be stale: then a segment is published early or late.
  const PageArena& arena = tree_.arena();
  const std::uint32_t most =
      (options_.chunk_blocks / tree_.segment_blocks() + 1) * kMaxSegmentsOfRange;
  SegmentId id = last;
  for (std::uint32_t hops = 0; hops < most && arena.valid(id); ++hops) {
    pending_.complete(id);
    const Segment segment = arena.segment(id);
    if (segment.start() <= begin) return;
    id = segment.parent();
  }
}

void Publisher::release(SegmentId segment, const PendingKey& key, Time now) {
  const auto facts = reader_.read(segment, key.position);
  if (!facts || facts->key != key.key) {
    if (now - key.since_ms < kGiveUpMs) {
      pending_.retry(segment, key, now, kRetryMs);
    } else {
      ++counters_.given_up;
    }
    return;
  }
  publish(*facts, reader_.aux(segment, key.position).bits, outbox_.keepers_of(key.key));
}

void Publisher::publish(const KeyFacts& facts, std::uint32_t aux_flags, const Keepers& to) {
  if (to.count == 0) return;
  if (facts.segment.id > kMaxPublishedSegment || facts.parent.id > kMaxPublishedSegment) return;
  DirectoryEntry entry;
  entry.segment = facts.segment;
  entry.parent = facts.parent;
  outbox_.publish({facts.key, entry.word1(), aux_flags}, to.all());
  ++counters_.published;
}

void Publisher::forget_pending() noexcept {
  pending_.clear();
  granules_.clear();
  waiting_.clear();
  waiting_granules_ = 0;
}

void Publisher::stop() {
  stopped_ = true;
  forget_pending();
  scan_.reset();
  moved_.clear();
  outbox_.drop_everything();
}

}  // namespace radixshmem
